"""Compiles expressions into a graph of operators in layers, and decides where each operator runs.

This package runs no operator and needs no device.
"""
