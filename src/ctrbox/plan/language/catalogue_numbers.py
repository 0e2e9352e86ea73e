"""Rows of the table in docs/operators/numbers.md: name, what it does, null, empty, Unicode, overflow."""

from ctrbox.plan.language.catalogue_phrases import BYTES, EITHER, NO, NONE, NULL

_WRAP = "Ints wrap around at 64 bits (two's complement). Floats follow IEEE 754."
_IEEE = "Floats follow IEEE 754."
_LARGEST = "For the int −2^63, the result is −2^63, because 2^63 does not fit into 64 bits."
_ASCII = (
    "Digits must be ASCII digits. A string that contains any character that is not part of the value gives a null, whether "
    "before, inside or after the value. This includes white space, which `.strip()` removes."
)
_OFFSET = (
    "The result is right for every 64-bit time, with one exception: if the offset moves a time out of the range of 64 bits, "
    "the moved time wraps around."
)
_MINUTES = "`offset_minutes=` is the difference of the local time from UTC in minutes (default: 0)."
_COMPARED = "Both arguments have the same kind: bool, int, float, time or key."
_ORDERED = "Both arguments have the same kind: bool, int, float or time."
_FALSE = "The result is false if an argument is NaN."
_TIE = "The result is NaN if either argument is NaN. If both arguments are equal, the result is the first one."

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # ---- arithmetic
    ("add", "Returns a + b.", NULL, NO, NO, _WRAP),
    ("sub", "Returns a − b. The difference of two times is a number of microseconds.", NULL, NO, NO, _WRAP),
    ("mul", "Returns a × b.", NULL, NO, NO, _WRAP),
    ("div", "Returns a / b as a float. Division by zero gives infinity, −infinity or NaN.", NULL, NO, NO, _IEEE),
    (
        "floordiv",
        "Returns a / b, rounded down. The result of two ints is an int, as in Python. The result of two floats is floor(a / b).",
        f"{NULL} Division of an int by zero gives a null.",
        NO,
        NO,
        "−2^63 // −1 wraps around to −2^63. Division of a float by zero gives infinity, −infinity or NaN.",
    ),
    (
        "mod",
        "Returns the remainder of a / b, with the sign of b, as in Python.",
        f"{NULL} The remainder of a division by zero is null.",
        NO,
        NO,
        NONE,
    ),
    ("neg", "Returns −a.", NULL, NO, NO, _LARGEST),
    ("abs", "Returns the absolute value.", NULL, NO, NO, _LARGEST),
    (
        "sqrt",
        "Returns the square root, rounded to the nearest float. A negative number gives NaN.",
        NULL,
        NO,
        NO,
        NONE,
    ),
    (
        "log1p",
        "Returns log(1 + x), with the same bits on every machine and an error of at most 1 ulp (the distance to the next "
        "float). −1 gives −infinity, and a smaller number gives NaN.",
        NULL,
        NO,
        NO,
        NONE,
    ),
    (
        "round",
        "Rounds to d digits after the decimal point, 0 to 15 (default: 0): round(x · 10^d) / 10^d. If x · 10^d lies exactly "
        "between two whole numbers, it is rounded to the even one.",
        NULL,
        NO,
        NO,
        "If x · 10^d is too large for a float, the result is x.",
    ),
    ("floor", "Returns the largest whole number that is not above x.", NULL, NO, NO, NONE),
    ("ceil", "Returns the smallest whole number that is not below x.", NULL, NO, NO, NONE),
    (
        "standardize",
        "Returns (x − mean) / standard deviation. The mean and the standard deviation are fitted on the log.",
        NULL,
        NO,
        NO,
        _IEEE,
    ),
    ("min", "Returns the smaller of two ints, floats or times.", NULL, NO, NO, _TIE),
    ("max", "Returns the larger of two ints, floats or times.", NULL, NO, NO, _TIE),
    (
        "clip",
        "Limits the value to the range between the two arguments. A smaller value gives the first argument, and a larger value "
        "gives the second argument.",
        NULL,
        NO,
        NO,
        "NaN stays NaN.",
    ),
    (
        "bucketize",
        "Returns the number of boundaries that are not above x. The boundaries are given as a list. With `quantiles=20`, they "
        "are fitted on the log, so that they divide its rows into 20 parts of about equal size.",
        NULL,
        "Without boundaries, the result is 0.",
        NO,
        "NaN counts as larger than every boundary. Ints beyond 2^53 are compared as the nearest float.",
    ),
    # ---- comparison and logic
    ("eq", f"Returns whether a = b. {_COMPARED}", NULL, NO, NO, "NaN is not equal to any value, not even to NaN."),
    ("ne", f"Returns whether a ≠ b. {_COMPARED}", NULL, NO, NO, "NaN differs from every value, even from NaN."),
    ("lt", f"Returns whether a < b. {_ORDERED}", NULL, NO, NO, _FALSE),
    ("le", f"Returns whether a ≤ b. {_ORDERED}", NULL, NO, NO, _FALSE),
    ("gt", f"Returns whether a > b. {_ORDERED}", NULL, NO, NO, _FALSE),
    ("ge", f"Returns whether a ≥ b. {_ORDERED}", NULL, NO, NO, _FALSE),
    ("and", "Returns whether both arguments are true.", f"{EITHER} This also holds for null & false.", NO, NO, NONE),
    (
        "or",
        "Returns whether at least one argument is true.",
        f"{EITHER} This also holds for null | true.",
        NO,
        NO,
        NONE,
    ),
    ("not", "Returns true for false, and false for true.", NULL, NO, NO, NONE),
    ("is_nan", "Returns whether the value is NaN.", NULL, NO, NO, NONE),
    (
        "is_in",
        "Returns whether the value is one of the given ints, floats, strings or times.",
        NULL,
        "If no values are given, the result is false. An empty string can be one of the values.",
        BYTES,
        "NaN is never one of the values. 0.0 and −0.0 are the same value.",
    ),
    # ---- nulls
    (
        "fill",
        "Returns the value or, where the value is null, the argument of `fill`. The values may have any kind.",
        "The result is null where the value and the argument are null.",
        "An empty string or list is not a null and stays as it is.",
        NO,
        NONE,
    ),
    (
        "is_null",
        "`is_null` returns whether the value is null, and `is_not_null` whether it is not null. The value may have any kind.",
        "The result is never null.",
        "An empty string or list is not a null.",
        NO,
        "NaN is not a null.",
    ),
    (
        "select",
        "Returns the value of `then` where the condition is true, and otherwise the value of `otherwise`. The values may have "
        "any kind.",
        "Where the condition is null, the result is the value of `otherwise`. The result is null where the chosen value is null.",
        NO,
        NO,
        NONE,
    ),
    # ---- casts
    (
        "cast_i",
        "Converts to an int. A float is rounded towards zero, a bool gives 0 or 1, a time gives microseconds since 1970 UTC, "
        "and a string may have a sign.",
        f"{NULL} NaN, and a string that is not a whole number, give a null. In a list, such elements are dropped.",
        "An empty string gives a null.",
        _ASCII,
        "A number that does not fit into 64 bits gives a null.",
    ),
    (
        "cast_f",
        "Converts to a float. An int or a string gives the nearest float. A string may have an exponent, or be `inf` or `nan`.",
        f"{NULL} A string that is not a number gives a null. In a list, such elements are dropped.",
        "An empty string gives a null.",
        _ASCII,
        "A number that is too large gives infinity or −infinity. Ints beyond 2^53 are rounded.",
    ),
    (
        "cast_s",
        "Converts to a string. An int is written in decimal, and a bool as `true` or `false`. A list of ints becomes a list of "
        "strings.",
        NULL,
        "An empty list gives an empty list.",
        NO,
        NONE,
    ),
    (
        "cast_b",
        "Converts a number to a bool: 0 gives false, and every other number gives true.",
        NULL,
        NO,
        NO,
        "NaN gives true.",
    ),
    (
        "cast_t",
        'Converts to a time. An int is a number of seconds ("s"), milliseconds ("ms"), microseconds ("us") or nanoseconds ("ns") '
        "since 1970 UTC; `unit=` names the unit. A string is a date, or has the form `YYYY-MM-DD[ T]hh:mm[:ss[.f]][Z|±hh:mm]`.",
        f"{NULL} A string that is not such a time gives a null.",
        "An empty string gives a null.",
        _ASCII,
        "Times are in the years 0001 to 9999; an int outside them gives a null. Digits of a string after the microseconds are "
        "cut off. Nanoseconds are rounded down to microseconds.",
    ),
    # ---- times
    ("hour", f"Returns the hour, 0 to 23. {_MINUTES}", NULL, NO, NO, _OFFSET),
    ("minute", f"Returns the minute, 0 to 59. {_MINUTES}", NULL, NO, NO, _OFFSET),
    ("weekday", f"Returns the day of the week, 0 (Monday) to 6 (Sunday). {_MINUTES}", NULL, NO, NO, _OFFSET),
    ("day", f"Returns the day of the month, 1 to 31. {_MINUTES}", NULL, NO, NO, _OFFSET),
    ("month", f"Returns the month, 1 to 12. {_MINUTES}", NULL, NO, NO, _OFFSET),
    ("year", f"Returns the year of the Gregorian calendar. {_MINUTES}", NULL, NO, NO, _OFFSET),
    (
        "epoch_day",
        f"Returns the number of days since 1970-01-01, which is negative for earlier days. {_MINUTES}",
        NULL,
        NO,
        NO,
        _OFFSET,
    ),
    (
        "age",
        "Returns the time of the column minus the time of the argument (in the example, `ts` − `seen`), as a float in "
        '"seconds" (the default), "minutes", "hours" or "days". The result is negative if the argument is the later time.',
        NULL,
        NO,
        NO,
        "The difference wraps around at 2^63 microseconds.",
    ),
    # ---- JSON
    (
        "json",
        "Returns the value at a path such as `$.a['b'][0]` of a JSON document, converted to the given kind: str (the default), "
        "int, float, bool, or a list of str, int or float. For str, a value that is not a string gives its raw JSON text. For "
        "int, every number with a whole value is accepted, such as 1e2.",
        f"{NULL} A path that does not exist and a JSON null give a null. A value of another kind gives a null, and elements of "
        "another kind are dropped from a list; `plan.casts` counts such values and elements.",
        "An empty document is malformed. A malformed document gives a null and is counted in `plan.warnings`; with "
        "`strict=True`, it is an error.",
        "Escapes such as `\\u00e9` become UTF-8. An escape that is only half of a surrogate pair becomes U+FFFD. All other bytes "
        "stay as they are.",
        "An int that does not fit into 64 bits gives a null. A float beyond 1.8e308 gives infinity or −infinity. A document with "
        "more than 64 levels of nesting is malformed.",
    ),
)
