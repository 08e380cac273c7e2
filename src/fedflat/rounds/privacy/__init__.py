"""Client-level differential privacy: who takes part, what is bounded, what is added, and what all that amounts to."""
