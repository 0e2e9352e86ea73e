"""Trains on a Ray cluster: shards of tables and Model Servers as actors, workers, launch and recovery (docs/cluster.md).
No other package imports ray.
"""
