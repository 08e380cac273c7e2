"""What a communication round is, whatever computes it: the server, local training, cohorts, batches, sums and state."""
