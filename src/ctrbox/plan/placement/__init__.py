"""Decides where each operator runs, by sizes, costs and devices."""
