"""Trains on a Ray cluster: shards of tables, Model Servers, workers, launch and recovery (docs/processes/cluster.md).
No other package imports ray.
"""
