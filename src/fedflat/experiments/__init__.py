"""Runs and studies described by configuration, with results on disk."""
