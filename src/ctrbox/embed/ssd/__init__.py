"""The embedder that keeps its rows on an SSD and the frequently used ones in memory."""
