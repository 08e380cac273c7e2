"""Simulation of a federation: the data of all clients are on this machine."""
