"""What crosses the network, computed from the records."""
