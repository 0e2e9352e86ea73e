"""Extraction and learning in one pipeline; metrics, checkpoints, run folders, reports."""
