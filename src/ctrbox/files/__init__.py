"""Files as readers see them: which version of a file is read, and a checksum of what it holds."""
