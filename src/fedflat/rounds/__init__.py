"""Communication rounds, for every engine: the server, local training, cohorts, batches, sums and state."""
