"""Rows of the operator table in docs/operators.md: name, what it does, null, empty, Unicode, overflow."""

from ctrbox.plan.language.catalogue_phrases import NONE, NULL

_POINTS = "counts code points; a byte that is not UTF-8 counts as one"
_BYTES = "by bytes, which for UTF-8 is by code points"
_CUT = "cut at 4 GiB, row counted in warnings"

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("length", "number of code points", NULL, "0", _POINTS, NONE),
    ("byte_length", "number of bytes", NULL, "0", "bytes as they are", NONE),
    (
        "lower",
        "lower case",
        NULL,
        '""',
        "Unicode 14.0, one code point to one: Σ gives σ everywhere, İ (U+0130) stays; other bytes stay",
        "cut after 2.5 GiB, row counted in warnings",
    ),
    (
        "strip",
        "take white space, or the characters given, off both ends",
        NULL,
        '""',
        "white space as Python's str.strip; characters are code points",
        NONE,
    ),
    (
        "prefix",
        "the first n code points",
        NULL,
        '""',
        _POINTS,
        "n beyond the end: the whole string; below zero: refused",
    ),
    (
        "suffix",
        "the last n code points",
        NULL,
        '""',
        _POINTS,
        "n beyond the beginning: the whole string; below zero: refused",
    ),
    (
        "substring",
        "`s[start:][:length]`; a negative start counts from the end, length −1 goes to the end",
        NULL,
        '""',
        _POINTS,
        "out of range: the part that exists",
    ),
    ("contains", "does the text occur", NULL, "true for empty text", _BYTES, NONE),
    ("starts_with", "does the string begin with the text", NULL, "true for empty text", _BYTES, NONE),
    ("ends_with", "does the string end with the text", NULL, "true for empty text", _BYTES, NONE),
    (
        "replace",
        "old by new, from the left, wherever they do not overlap",
        NULL,
        '""; an empty old changes nothing',
        _BYTES,
        _CUT,
    ),
    ("concat", "two strings with a separator between", "null if any is", "the separator", "bytes as they are", _CUT),
    (
        "split",
        "parts between separators; empty parts are kept",
        NULL,
        "empty string: empty list; empty separator refused",
        _BYTES,
        NONE,
    ),
    (
        "words",
        "runs of letters, numbers, marks and '_'",
        NULL,
        "empty list",
        "Unicode 14.0; Han, Hiragana and Katakana: each character a word; a mark begins no word; "
        "bytes that are not UTF-8 end a word",
        NONE,
    ),
    ("ngrams", "every run of n code points", NULL, "shorter than n: empty list", _POINTS, NONE),
    (
        "edit_distance",
        "Levenshtein distance up to a limit of at most 64; limit + 1 where it is larger",
        "null if any is",
        "length of the other",
        _POINTS,
        "limit + 1",
    ),
    ("eq ne lt le gt ge", "comparison of two strings", "null if any is", '"" comes first', "order of bytes", NONE),
)
