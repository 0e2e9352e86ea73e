"""Turns keys into trainable vectors. ``docs/embedders.md`` describes the protocol of an embedder."""
