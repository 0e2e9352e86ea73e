"""Writes pages about recorded runs, from the files of the run folder. Nothing in this folder trains."""
