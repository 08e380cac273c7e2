"""Client-level differential privacy: sampling of clients, clipping, noise, and accounting."""
