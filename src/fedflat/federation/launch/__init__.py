"""Starts a whole federation on one machine; makes certificates and keys, also for one over several machines."""
