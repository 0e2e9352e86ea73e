"""Plain data: kinds of values, batches, schemas. Knows nothing of files, plans or engines."""
