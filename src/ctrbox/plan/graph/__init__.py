"""The compiled form of a job: how it is built, checked, ordered and saved."""
