"""The plan that ``cb.compile`` returns: its batches, its file and fingerprint, and its split for requests."""
