"""Optimizers: those of the rows of embedding tables, and those of the dense weights of models."""
