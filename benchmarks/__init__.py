"""One file, one question; each is run as `python -m benchmarks.NAME [--quick]`."""
