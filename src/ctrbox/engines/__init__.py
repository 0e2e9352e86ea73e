"""Runs plans by one of two engines: ``cpu`` and ``cuda``. The modules of this folder are common to both."""
