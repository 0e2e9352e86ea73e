"""The only importer of ray: shards of tables and Model Servers as actors, workers, launch, recovery. docs/cluster.md."""
