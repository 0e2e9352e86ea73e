"""Compiles expressions into a graph of operators in layers, and decides where each operator runs.

It runs nothing and needs no device.
"""
