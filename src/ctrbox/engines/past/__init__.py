"""Computes histories and windowed counters: features of the past of a log."""
