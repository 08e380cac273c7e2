"""Secure aggregation: the server learns the sum of clients' records and no single one (Bonawitz et al., CCS 2017)."""
