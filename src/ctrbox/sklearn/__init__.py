"""Exports ``cb.Classifier``, a click model for dataframes."""
