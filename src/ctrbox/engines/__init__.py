"""Runs plans. ``cpu`` runs them on the CPU and ``cuda`` on a GPU; the modules of this folder are common to both."""
