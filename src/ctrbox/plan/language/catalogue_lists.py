"""Rows of the operator table in docs/operators.md: name, what it does, null, empty, Unicode, overflow.

Lists hold no nulls: null elements are dropped when they are read.
"""

_NULL = "null in, null out"
_EITHER = "null if any is"
_SAME = "bytes as they are"
_NA = "–"
_NONE = "cannot overflow"

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("length", "number of elements", _NULL, "0", _NA, _NONE),
    (
        "first",
        "the first n elements",
        _NULL,
        "empty list",
        _NA,
        "n beyond the end: the whole list; below zero: refused",
    ),
    (
        "last",
        "the last n elements",
        _NULL,
        "empty list",
        _NA,
        "n beyond the beginning: the whole list; below zero: refused",
    ),
    ("get", "one element; a negative index counts from the end", _NULL, "null", _NA, "out of range: null"),
    (
        "join",
        "strings joined by a separator",
        _NULL,
        '""',
        _SAME,
        "ends before 4 GiB, row counted in warnings",
    ),
    (
        "distinct",
        "without repetitions, the first of equal elements kept, in order",
        _NULL,
        "empty list",
        "strings are equal when their bytes are",
        "2^31 − 1 elements of a row, the rest cut and counted",
    ),
    (
        "ngrams",
        "hash of each n consecutive hashes",
        _NULL,
        "shorter than n: empty list",
        _NA,
        "64-bit hashes",
    ),
    ("overlap_count", "number of distinct values in both lists", _EITHER, "0", _SAME, _NONE),
    (
        "overlap_jaccard",
        "distinct values in both lists ÷ distinct values in either",
        _EITHER,
        "both empty: 0.0",
        _SAME,
        _NONE,
    ),
    ("contains", "is the value in the list", _EITHER, "false", _SAME, _NONE),
    ("sum", "sum, left to right", _NULL, "0", _NA, "int wraps around; float gives ±inf"),
    ("mean", "sum ÷ number of elements", _NULL, "null", _NA, "float gives ±inf"),
    ("max", "largest element; NaN if any is", _NULL, "null", _NA, _NONE),
    ("min", "smallest element; NaN if any is", _NULL, "null", _NA, _NONE),
)
