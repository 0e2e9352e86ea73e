"""Embedders whose rows lie in the memory of a GPU."""
