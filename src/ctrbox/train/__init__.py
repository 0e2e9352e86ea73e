"""Trains models: extraction and learning in one pipeline, checkpoints and run folders."""
