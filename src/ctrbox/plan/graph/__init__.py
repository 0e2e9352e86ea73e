"""Builds, checks, orders and saves the compiled form of a job."""
