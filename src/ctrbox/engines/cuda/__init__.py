"""The CUDA engine: a plan on a GPU. docs/gpu.md has the bytes, the streams and the failures."""
