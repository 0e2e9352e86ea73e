"""Metrics, intervals, calibration, slices and verdicts: arrays go in, numbers come out."""
