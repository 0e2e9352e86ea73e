"""Rows of the table in docs/operators/strings.md: name, what it does, null, empty, Unicode, overflow."""

from ctrbox.plan.language.catalogue_phrases import BYTES, EITHER, KEPT, NONE, NULL, POINTS

EMPTY = "An empty string gives an empty string."
_CUT = "A result is cut at 4 GiB, and the row is counted in `plan.warnings`."
_PART = "A negative n is refused."
_FOUND = "If the argument is empty, the result is true."

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("length", "Returns the number of characters.", NULL, "An empty string gives 0.", POINTS, NONE),
    ("byte_length", "Returns the number of bytes.", NULL, "An empty string gives 0.", KEPT, NONE),
    (
        "lower",
        "Converts to lower case.",
        NULL,
        EMPTY,
        "The conversion follows Unicode 14.0 and replaces each code point by exactly one code point: Σ always becomes σ, and İ "
        "(U+0130) stays as it is. Bytes that are not valid UTF-8 stay as they are.",
        "A string is cut after 2.5 GiB, and the row is counted in `plan.warnings`.",
    ),
    (
        "strip",
        "Removes white space, or the given characters, from both ends.",
        NULL,
        EMPTY,
        "The same characters count as white space as for Python's `str.strip`.",
        NONE,
    ),
    (
        "prefix",
        "Returns the first n characters, or the whole string if it is shorter.",
        NULL,
        EMPTY,
        POINTS,
        _PART,
    ),
    (
        "suffix",
        "Returns the last n characters, or the whole string if it is shorter.",
        NULL,
        EMPTY,
        POINTS,
        _PART,
    ),
    (
        "substring",
        "Returns `s[start:][:length]`. A negative start counts from the end of the string. A length of −1 means “up to the "
        "end”.",
        NULL,
        EMPTY,
        POINTS,
        "If the range is not entirely inside the string, the result is the part of the range that is inside.",
    ),
    ("contains", "Returns whether the argument occurs in the string.", NULL, _FOUND, BYTES, NONE),
    (
        "starts_with",
        "Returns whether the string begins with the argument.",
        NULL,
        _FOUND,
        BYTES,
        NONE,
    ),
    (
        "ends_with",
        "Returns whether the string ends with the argument.",
        NULL,
        _FOUND,
        BYTES,
        NONE,
    ),
    (
        "replace",
        "Replaces every occurrence of the first argument by the second argument, from left to right. Occurrences that overlap "
        "an earlier occurrence are not replaced.",
        NULL,
        f"{EMPTY} If the first argument is empty, nothing is replaced.",
        BYTES,
        _CUT,
    ),
    (
        "concat",
        "Joins two strings with a separator between them.",
        EITHER,
        "Two empty strings give the separator.",
        KEPT,
        _CUT,
    ),
    (
        "split",
        "Divides a string at a separator. Empty parts are kept.",
        NULL,
        "An empty string gives an empty list. An empty separator is refused.",
        BYTES,
        NONE,
    ),
    (
        "words",
        "Returns the words of a string. A word is a sequence of letters, numbers, marks and `_`.",
        NULL,
        "An empty string gives an empty list.",
        "Letters, numbers and marks are those of Unicode 14.0. Each Han, Hiragana and Katakana character is a word of its own. "
        "A word does not begin with a mark. Bytes that are not valid UTF-8 end a word.",
        NONE,
    ),
    (
        "ngrams",
        "Returns all sequences of n consecutive characters.",
        NULL,
        "A string with fewer than n characters gives an empty list.",
        POINTS,
        NONE,
    ),
    (
        "edit_distance",
        "Returns the Levenshtein distance of two strings, up to a limit of 0 to 64 (default: 8). A larger distance gives "
        "limit + 1.",
        EITHER,
        "The distance of an empty string to another string is the length of the other string.",
        POINTS,
        NONE,
    ),
    (
        "eq ne lt le gt ge",
        "Compares two strings.",
        EITHER,
        "An empty string is smaller than every other string.",
        "Strings are ordered by their bytes.",
        NONE,
    ),
)
