"""Engines run a plan. ``cpu`` runs it here; what is common to all of them (``Plan``) lies beside them."""
