"""Defines what users write: expressions, operators and feature sets, and their types."""
