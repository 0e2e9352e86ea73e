"""Runs plans on a GPU (docs/gpu.md). docs/how_the_gpu_engine_works.md describes memory, kernels and streams."""
