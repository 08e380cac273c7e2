"""Secure aggregation: the server learns the sum of all records, and no single record (Bonawitz et al., CCS 2017)."""
