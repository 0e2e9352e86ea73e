"""Checks and parses what users type: sizes, numbers and names."""
