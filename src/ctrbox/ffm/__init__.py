"""The Deep FFM engine, its examples and its search (docs/online/deep_ffm.md)."""

from ctrbox.ffm.engine import DeepFFM, Rate
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache, ExampleText
from ctrbox.ffm.model_search import grid, search

__all__ = ["DeepFFM", "ExampleCache", "ExampleText", "Rate", "grid", "search"]
