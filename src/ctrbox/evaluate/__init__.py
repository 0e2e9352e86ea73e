"""Evaluates predictions: metrics, confidence intervals, calibration, slices and verdicts."""
