"""Servers that tests of the loop start may read the views below the tests' own folders, as in tests/serve."""

from tests.serve.conftest import _views_of_the_tests

__all__ = ["_views_of_the_tests"]
