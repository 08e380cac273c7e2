"""The sum of clients' records without the records: the server sees what they add up to (Bonawitz et al., CCS 2017)."""
