"""The embedder whose rows all lie in main memory."""
