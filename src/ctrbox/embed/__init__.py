"""Turns keys into trainable vectors. ``docs/training/embedders.md`` describes the protocol of an embedder."""
