"""Defines views: raw rows from files or frames, their cleaning and their joins, all lazy."""
