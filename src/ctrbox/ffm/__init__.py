"""The Deep FFM engine, its examples and its search (docs/deep_ffm.md)."""
