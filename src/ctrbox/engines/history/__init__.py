"""Computes the history columns of a log: histories, and counts and sums over sliding windows."""
