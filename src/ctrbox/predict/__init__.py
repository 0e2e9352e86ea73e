"""Predicts with trained click models, which are read from a run folder or a published version. Nothing here learns."""
