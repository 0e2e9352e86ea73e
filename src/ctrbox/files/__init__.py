"""Files as readers see them: which version of a file is read, a checksum of what it holds, and small files that a stranger
may have made."""
