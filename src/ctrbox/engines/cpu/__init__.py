"""The CPU engine: native programs over chunks of rows, on all cores, with the GIL released."""
