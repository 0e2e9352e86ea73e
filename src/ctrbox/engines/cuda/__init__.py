"""Runs plans on a GPU (docs/gpu.md). docs/how_it_works/gpu_engine.md describes memory, kernels and streams."""
