"""Defines plain data types: kinds of values, batches and schemas. Knows nothing of files, plans or engines."""
