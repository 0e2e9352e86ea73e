"""Embedders that keep their rows in GPU memory."""
