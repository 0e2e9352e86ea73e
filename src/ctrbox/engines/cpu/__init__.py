"""Runs plans on the CPU: native programs over chunks of rows, on all cores, without the GIL."""
