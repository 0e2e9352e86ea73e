"""Rows of the operator table in docs/operators.md: name, what it does, null, empty, Unicode, overflow.

Lists hold no nulls: null elements are dropped when they are read.
"""

from ctrbox.plan.language.catalogue_phrases import EITHER, NO, NONE, NULL

_SAME = "bytes as they are"

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("length", "number of elements", NULL, "0", NO, NONE),
    (
        "first",
        "the first n elements",
        NULL,
        "empty list",
        NO,
        "n beyond the end: the whole list; below zero: refused",
    ),
    (
        "last",
        "the last n elements",
        NULL,
        "empty list",
        NO,
        "n beyond the beginning: the whole list; below zero: refused",
    ),
    ("get", "one element; a negative index counts from the end", NULL, "null", NO, "out of range: null"),
    ("join", "strings joined by a separator", NULL, '""', _SAME, "ends before 4 GiB, row counted in warnings"),
    (
        "distinct",
        "without repetitions, the first of equal elements kept, in order",
        NULL,
        "empty list",
        "strings are equal when their bytes are",
        "2^31 − 1 elements of a row, the rest cut and counted",
    ),
    ("ngrams", "hash of each n consecutive hashes", NULL, "shorter than n: empty list", NO, "64-bit hashes"),
    ("overlap_count", "number of distinct values in both lists", EITHER, "0", _SAME, NONE),
    (
        "overlap_jaccard",
        "distinct values in both lists ÷ distinct values in either",
        EITHER,
        "both empty: 0.0",
        _SAME,
        NONE,
    ),
    ("contains", "is the value in the list", EITHER, "false", _SAME, NONE),
    ("sum", "sum, left to right", NULL, "0", NO, "int wraps around; float gives ±inf"),
    ("mean", "sum ÷ number of elements", NULL, "null", NO, "float gives ±inf"),
    ("max", "largest element; NaN if any is", NULL, "null", NO, NONE),
    ("min", "smallest element; NaN if any is", NULL, "null", NO, NONE),
)
