"""Turns keys into trainable vectors. ``docs/training.md`` describes the protocol of an embedder."""
