"""Runs plans on a GPU (docs/gpu.md). The page describes memory, streams and failures."""
