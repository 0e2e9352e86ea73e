"""Runs plans with one of two engines, ``cpu`` or ``cuda``. The modules of this folder are common to both."""
