"""Rows of the table in docs/operators/lists.md: name, what it does, null, empty, Unicode, overflow.

Lists hold no nulls: null elements are dropped when they are read.
"""

from ctrbox.plan.language.catalogue_phrases import BYTES, EITHER, KEPT, NO, NONE, NULL

EMPTY = "An empty list gives an empty list."
ABSENT = "An empty list gives a null."
_PART = "A negative n is refused."
_NAN = "The result is NaN if any element is NaN."

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("length", "Returns the number of elements.", NULL, "An empty list gives 0.", NO, NONE),
    ("first", "Returns the first n elements, or all elements if there are fewer.", NULL, EMPTY, NO, _PART),
    ("last", "Returns the last n elements, or all elements if there are fewer.", NULL, EMPTY, NO, _PART),
    (
        "get",
        "Returns the element at a position, counted from 0. A negative position counts from the end of the list.",
        NULL,
        ABSENT,
        NO,
        "A position outside the list gives a null.",
    ),
    (
        "join",
        "Joins the strings of a list, with a separator between them.",
        NULL,
        "An empty list gives an empty string.",
        KEPT,
        "A result that would reach 4 GiB is cut, and the row is counted in `plan.warnings`.",
    ),
    (
        "distinct",
        "Returns the list without repetitions. Of equal elements, only the first one is kept. The order does not change.",
        NULL,
        EMPTY,
        BYTES,
        "If a list has more than 2^31 − 1 elements, the elements after that are left out, and the row is counted in "
        "`plan.warnings`.",
    ),
    (
        "ngrams",
        "Returns one key for each sequence of n consecutive elements of a list. The key is a hash of the hashes of the elements.",
        NULL,
        "A list with fewer than n elements gives an empty list.",
        NO,
        "Two different sequences have the same hash with a probability of about 2^−64.",
    ),
    (
        "overlap_count",
        "Returns the number of distinct values that occur in both lists.",
        EITHER,
        "An empty list gives 0.",
        BYTES,
        NONE,
    ),
    (
        "overlap_jaccard",
        "Returns the number of distinct values that occur in both lists, divided by the number of distinct values that occur in "
        "at least one of them.",
        EITHER,
        "Two empty lists give 0.",
        BYTES,
        NONE,
    ),
    (
        "contains",
        "Returns whether the argument is an element of the list.",
        EITHER,
        "An empty list contains no value, so the result is false.",
        BYTES,
        NONE,
    ),
    (
        "sum",
        "Returns the sum of the elements, added from left to right.",
        NULL,
        "An empty list gives 0.",
        NO,
        "Ints wrap around at 64 bits. A sum of floats that is too large gives infinity or −infinity.",
    ),
    (
        "mean",
        "Returns the mean of the elements.",
        NULL,
        ABSENT,
        NO,
        "If the sum of the elements is too large for a float, the result is infinity or −infinity.",
    ),
    ("max", "Returns the largest element.", NULL, ABSENT, NO, _NAN),
    ("min", "Returns the smallest element.", NULL, ABSENT, NO, _NAN),
)
