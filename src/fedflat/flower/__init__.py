"""The names that exported Flower apps import; the code is in `fedflat.federation.flower`."""
