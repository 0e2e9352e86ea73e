"""Embedders: keys in, trainable vectors out. ``docs/training.md`` has the contract."""
