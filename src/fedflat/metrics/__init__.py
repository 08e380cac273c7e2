"""Metrics of a model: accuracy, spread over clients, drift, flatness."""
