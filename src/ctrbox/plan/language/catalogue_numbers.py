"""Rows of the operator table in docs/operators.md: name, what it does, null, empty, Unicode, overflow."""

_NULL = "null in, null out"
_NO = "–"
_WRAP = "int wraps around (two's complement); float follows IEEE 754"
_IEEE = "IEEE 754"
_NONE = "cannot overflow"
_ASCII = "ASCII digits only; any other byte, white space around the number too: null (.strip() first)"
_OFFSET = "every int64 is right; a local time past its ends wraps"

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # ---- arithmetic
    ("add", "a + b of two ints or two floats", _NULL, _NO, _NO, _WRAP),
    ("sub", "a − b of two ints or two floats; of two times the microseconds between", _NULL, _NO, _NO, _WRAP),
    ("mul", "a × b of two ints or two floats", _NULL, _NO, _NO, _WRAP),
    ("div", "a / b as floats; by zero ±inf or NaN", _NULL, _NO, _NO, _IEEE),
    (
        "floordiv",
        "a // b: ints round down as in Python, floats give floor(a / b)",
        "null in, null out; int by zero gives null",
        _NO,
        _NO,
        "−2^63 // −1 wraps to −2^63; float by zero ±inf or NaN",
    ),
    ("mod", "a % b of ints, with the sign of b", "null in, null out; by zero gives null", _NO, _NO, _NONE),
    ("neg", "−a", _NULL, _NO, _NO, "−(−2^63) wraps to −2^63"),
    ("abs", "magnitude", _NULL, _NO, _NO, "of −2^63 wraps to −2^63"),
    ("sqrt", "square root, correctly rounded; below zero NaN", _NULL, _NO, _NO, _NONE),
    (
        "log1p",
        "log(1 + x) within 1 ulp, the same bits everywhere; at −1 −inf, below NaN",
        _NULL,
        _NO,
        _NO,
        _NONE,
    ),
    (
        "round",
        "half to even at 0 to 15 digits: round(x · 10^d) / 10^d",
        _NULL,
        _NO,
        _NO,
        "where x · 10^d overflows: x",
    ),
    ("floor", "largest whole number not above", _NULL, _NO, _NO, _NONE),
    ("ceil", "smallest whole number not below", _NULL, _NO, _NO, _NONE),
    ("standardise", "(x − mean) / deviation, both fitted on the log", _NULL, _NO, _NO, _IEEE),
    (
        "min",
        "smaller of two ints, floats or times; NaN if either is; on a tie the first",
        _NULL,
        _NO,
        _NO,
        _NONE,
    ),
    (
        "max",
        "larger of two ints, floats or times; NaN if either is; on a tie the first",
        _NULL,
        _NO,
        _NO,
        _NONE,
    ),
    ("clip", "into [low, high]; NaN stays NaN", _NULL, _NO, _NO, _NONE),
    (
        "bucketize",
        "number of boundaries ≤ x; NaN goes last",
        _NULL,
        "0 without boundaries",
        _NO,
        "ints beyond 2^53 are compared as the nearest float",
    ),
    # ---- comparison and logic
    ("eq", "a = b of bools, ints, floats, times, keys", _NULL, _NO, _NO, "NaN equals nothing"),
    ("ne", "a ≠ b of bools, ints, floats, times, keys", _NULL, _NO, _NO, "NaN differs from everything"),
    ("lt", "a < b of bools, ints, floats, times", _NULL, _NO, _NO, "false with NaN"),
    ("le", "a ≤ b of bools, ints, floats, times", _NULL, _NO, _NO, "false with NaN"),
    ("gt", "a > b of bools, ints, floats, times", _NULL, _NO, _NO, "false with NaN"),
    ("ge", "a ≥ b of bools, ints, floats, times", _NULL, _NO, _NO, "false with NaN"),
    ("and", "both", "null if either is, even beside false", _NO, _NO, _NONE),
    ("or", "either", "null if either is, even beside true", _NO, _NO, _NONE),
    ("not", "the opposite", _NULL, _NO, _NO, _NONE),
    ("is_nan", "is it NaN", _NULL, _NO, _NO, _NONE),
    (
        "is_in",
        "is it one of the given ints, floats, strs or times",
        _NULL,
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
        _NO,
        _NONE,
    ),
    (
        "is_null",
        "whether the value is null, or is not null; accepts every type",
        "true or false, never null",
        "not null",
        _NO,
        "NaN is not null",
    ),
    (
        "select",
        "when(c).then(a).otherwise(b); every kind",
        "a null condition takes b; else as the branch taken",
        _NO,
        _NO,
        _NONE,
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
    ("cast_s", "to str: int in decimal, bool as true/false, list of int", _NULL, "empty list", _NO, _NONE),
    ("cast_b", "to bool: not zero", _NULL, _NO, _NO, "NaN is true"),
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
    ("hour", "0 to 23, at an offset from UTC in minutes", _NULL, _NO, _NO, _OFFSET),
    ("minute", "0 to 59, at an offset from UTC in minutes", _NULL, _NO, _NO, _OFFSET),
    ("weekday", "0 (Monday) to 6, at an offset from UTC in minutes", _NULL, _NO, _NO, _OFFSET),
    ("day", "day of the month, 1 to 31, at an offset from UTC in minutes", _NULL, _NO, _NO, _OFFSET),
    ("month", "1 to 12, at an offset from UTC in minutes", _NULL, _NO, _NO, _OFFSET),
    ("year", "Gregorian year, at an offset from UTC in minutes", _NULL, _NO, _NO, _OFFSET),
    ("epoch_day", "days since 1970-01-01, before it negative", _NULL, _NO, _NO, _OFFSET),
    (
        "age",
        "time between two times as a float of a unit",
        _NULL,
        _NO,
        _NO,
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
