"""Federations over Flower: it connects the machines and transfers messages; the rounds themselves are fedflat's."""
