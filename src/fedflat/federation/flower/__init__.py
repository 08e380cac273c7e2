"""Federations over Flower: Flower connects the machines and transfers messages; fedflat carries out the rounds."""
