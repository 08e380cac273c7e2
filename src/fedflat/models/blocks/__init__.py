"""What several models are made of."""
