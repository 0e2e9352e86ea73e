"""Checks and parsing of what users type: sizes, numbers, names."""
