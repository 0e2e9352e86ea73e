"""Click models in PyTorch: parts plus wiring, no loops, no optimizers."""
