"""The embedder that keeps all its rows in main memory."""
