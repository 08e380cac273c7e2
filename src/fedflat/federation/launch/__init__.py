"""Starts the server and all clients on one machine; makes certificates and keys, also for several machines."""
