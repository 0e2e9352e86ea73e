"""Rows of the operator table in docs/operators.md: name, what it does, null, empty, Unicode, overflow."""

from ctrbox.plan.language.catalogue_phrases import NO, NONE, NULL

_WRAP = "int wraps around (two's complement); float follows IEEE 754"
_IEEE = "IEEE 754"
_ASCII = "ASCII digits only; any other byte, white space around the number too: null (.strip() first)"
_OFFSET = "every int64 is right; a local time past its ends wraps"

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # ---- arithmetic
    ("add", "a + b of two ints or two floats", NULL, NO, NO, _WRAP),
    ("sub", "a − b of two ints or two floats; of two times the microseconds between", NULL, NO, NO, _WRAP),
    ("mul", "a × b of two ints or two floats", NULL, NO, NO, _WRAP),
    ("div", "a / b as floats; by zero ±inf or NaN", NULL, NO, NO, _IEEE),
    (
        "floordiv",
        "a // b: ints round down as in Python, floats give floor(a / b)",
        "null in, null out; int by zero gives null",
        NO,
        NO,
        "−2^63 // −1 wraps to −2^63; float by zero ±inf or NaN",
    ),
    ("mod", "a % b of ints, with the sign of b", "null in, null out; by zero gives null", NO, NO, NONE),
    ("neg", "−a", NULL, NO, NO, "−(−2^63) wraps to −2^63"),
    ("abs", "magnitude", NULL, NO, NO, "of −2^63 wraps to −2^63"),
    ("sqrt", "square root, correctly rounded; below zero NaN", NULL, NO, NO, NONE),
    ("log1p", "log(1 + x) within 1 ulp, the same bits everywhere; at −1 −inf, below NaN", NULL, NO, NO, NONE),
    ("round", "half to even at 0 to 15 digits: round(x · 10^d) / 10^d", NULL, NO, NO, "where x · 10^d overflows: x"),
    ("floor", "largest whole number not above", NULL, NO, NO, NONE),
    ("ceil", "smallest whole number not below", NULL, NO, NO, NONE),
    ("standardise", "(x − mean) / deviation, both fitted on the log", NULL, NO, NO, _IEEE),
    ("min", "smaller of two ints, floats or times; NaN if either is; on a tie the first", NULL, NO, NO, NONE),
    ("max", "larger of two ints, floats or times; NaN if either is; on a tie the first", NULL, NO, NO, NONE),
    ("clip", "into [low, high]; NaN stays NaN", NULL, NO, NO, NONE),
    (
        "bucketize",
        "number of boundaries ≤ x; NaN goes last",
        NULL,
        "0 without boundaries",
        NO,
        "ints beyond 2^53 are compared as the nearest float",
    ),
    # ---- comparison and logic
    ("eq", "a = b of bools, ints, floats, times, keys", NULL, NO, NO, "NaN equals nothing"),
    ("ne", "a ≠ b of bools, ints, floats, times, keys", NULL, NO, NO, "NaN differs from everything"),
    ("lt", "a < b of bools, ints, floats, times", NULL, NO, NO, "false with NaN"),
    ("le", "a ≤ b of bools, ints, floats, times", NULL, NO, NO, "false with NaN"),
    ("gt", "a > b of bools, ints, floats, times", NULL, NO, NO, "false with NaN"),
    ("ge", "a ≥ b of bools, ints, floats, times", NULL, NO, NO, "false with NaN"),
    ("and", "both", "null if either is, even beside false", NO, NO, NONE),
    ("or", "either", "null if either is, even beside true", NO, NO, NONE),
    ("not", "the opposite", NULL, NO, NO, NONE),
    ("is_nan", "is it NaN", NULL, NO, NO, NONE),
    (
        "is_in",
        "is it one of the given ints, floats, strs or times",
        NULL,
        "false for an empty set; the empty string is a value",
        "by bytes",
        "NaN is in no set; 0.0 and −0.0 are one",
    ),
    # ---- nulls
    (
        "fill",
        "the value, or the other one where it is null; every kind",
        "null where both are",
        "empty is a value",
        NO,
        NONE,
    ),
    (
        "is_null",
        "whether the value is null, or is not null; accepts every type",
        "true or false, never null",
        "not null",
        NO,
        "NaN is not null",
    ),
    (
        "select",
        "when(c).then(a).otherwise(b); every kind",
        "a null condition takes b; else as the branch taken",
        NO,
        NO,
        NONE,
    ),
    # ---- casts
    (
        "cast_i",
        "to int: float towards zero, bool 0/1, time in microseconds, str with an optional sign",
        "null in, null out; what does not parse, NaN; elements of a list are dropped",
        "null",
        _ASCII,
        "null",
    ),
    (
        "cast_f",
        "to float: int, bool, or str as the nearest double, with inf, nan and exponents",
        "null in, null out; what does not parse; elements of a list are dropped",
        "null",
        _ASCII,
        "±inf; ints beyond 2^53 are rounded",
    ),
    ("cast_s", "to str: int in decimal, bool as true/false, list of int", NULL, "empty list", NO, NONE),
    ("cast_b", "to bool: not zero", NULL, NO, NO, "NaN is true"),
    (
        "cast_t",
        'to time: int counts "s", "ms", "us" or "ns" since 1970, as unit= says; '
        "str as `YYYY-MM-DD[ T]hh:mm[:ss[.f]][Z|±hh:mm]` or a date",
        "null in, null out; what does not parse or is not a date",
        "null",
        _ASCII,
        "years 0001 to 9999, an int outside them is null; digits past microseconds are cut off, nanoseconds are rounded down",
    ),
    # ---- times
    ("hour", "0 to 23, at an offset from UTC in minutes", NULL, NO, NO, _OFFSET),
    ("minute", "0 to 59, at an offset from UTC in minutes", NULL, NO, NO, _OFFSET),
    ("weekday", "0 (Monday) to 6, at an offset from UTC in minutes", NULL, NO, NO, _OFFSET),
    ("day", "day of the month, 1 to 31, at an offset from UTC in minutes", NULL, NO, NO, _OFFSET),
    ("month", "1 to 12, at an offset from UTC in minutes", NULL, NO, NO, _OFFSET),
    ("year", "Gregorian year, at an offset from UTC in minutes", NULL, NO, NO, _OFFSET),
    ("epoch_day", "days since 1970-01-01, before it negative", NULL, NO, NO, _OFFSET),
    (
        "age",
        "time between two times as a float of a unit",
        NULL,
        NO,
        NO,
        "the difference wraps at 2^63 microseconds",
    ),
    # ---- JSON
    (
        "json",
        "value at `$.a['b'][0]`: str (raw text of what is not a string), int (whole), float, bool, lists of them",
        "null in, absent or JSON null: null; another type: null, elements of another type are dropped, both counted in casts",
        "an empty document is malformed: null, counted in warnings",
        "escapes become UTF-8, a lone surrogate U+FFFD; other bytes stay",
        "int past 64 bits: null; float past 1.8e308: ±inf; deeper than 64 levels: malformed",
    ),
)
