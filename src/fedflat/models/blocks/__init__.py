"""Building blocks that several models share."""
