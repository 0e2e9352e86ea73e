"""`cb.Classifier`, for people with a dataframe."""
