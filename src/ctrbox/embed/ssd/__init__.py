"""The embedder whose rows lie on an SSD, with the hot ones in memory."""
