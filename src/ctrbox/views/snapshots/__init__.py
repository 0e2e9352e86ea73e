"""Reads tables of Delta Lake and Apache Iceberg: which files one version of a table has, and their rows under its columns."""
