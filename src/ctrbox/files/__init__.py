"""Handles files: versions, checksums, atomic writes, file systems, and small files that may come from strangers."""
