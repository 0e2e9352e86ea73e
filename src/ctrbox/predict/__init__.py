"""Trained click models as they predict: from a run folder or a published version to probabilities. Nothing here learns."""
