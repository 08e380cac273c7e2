"""The contract between methods and everything that runs them. Imports torch and nothing of ours above it."""
