"""The contract between methods and everything that runs them. It imports torch, and no other package of fedflat."""
