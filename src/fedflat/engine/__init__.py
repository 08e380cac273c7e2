"""Runs a method on a federation that lives on one machine."""
