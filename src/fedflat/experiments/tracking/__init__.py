"""Writes what rounds report to tools in which people follow runs: CSV, TensorBoard, Weights & Biases, MLflow."""

from .observer import TrackingObserver, check_trackers

__all__ = ["TrackingObserver", "check_trackers"]
