"""Rows of the operator table in docs/operators.md: name, what it does, null, empty, Unicode, overflow."""

from ctrbox.plan.language.catalogue_phrases import EITHER, NO, NONE, NULL

_BYTES = "by bytes, nothing normalized"
_MISSING = "a null or missing key meets the null row: nulls, cleaned by the steps of its own view"
_PAST = "null if a member or the time is; such a row is not counted, nor is one whose label is null or NaN"

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # ---- where values come from
    (
        "column",
        "a column by name: raw, joined, or made by with_columns; a struct's field is a column 'struct.field'",
        "as stored; null elements of a list are dropped",
        "as stored",
        "bytes as they are, valid UTF-8 or not",
        "uint64 past 2^63 − 1: an error that names the row",
    ),
    (
        "literal",
        "a constant: number, str, bytes, bool, datetime, or [] as the fill of a list",
        "None is refused",
        "as given",
        "kept as UTF-8; bytes as given",
        "an int past 64 bits is refused",
    ),
    # ---- keys
    (
        "hash",
        "64-bit hash of the bytes and the kind: 5 and '5' differ; of a list, of each element; not of a float",
        NULL,
        '"" has a hash; empty list: empty list',
        _BYTES,
        "two ints, or two times, never collide; two strs with probability 2^−64",
    ),
    (
        "key",
        "the hash within a space, by default the feature's name; of a list, of each element",
        NULL,
        '"" has a key; empty list: no key',
        _BYTES,
        "as hash; 0, the null slot, is never given",
    ),
    (
        "as_key",
        "whole numbers that are keys already, taken as they are",
        "null in, null out; before it, .fill(0) puts the null slot and .fill([]) no key",
        "empty list: no key",
        NO,
        "the same 64 bits",
    ),
    (
        "cross",
        "one hash a combination of two or more members, in their order, then the key of the feature's space; "
        "lists multiply out, the left member outermost",
        EITHER,
        "an empty list among the members: no key",
        _BYTES,
        "cut at limit keys per row (1,024 unless given), row counted in warnings",
    ),
    # ---- dictionaries
    (
        "lookup",
        "the id of a word, or of each word of a list; the first of equal words counts",
        "null in, null out; a word it lacks: the default, without one null; a list needs a default",
        '"" is a word; empty list: empty list',
        _BYTES,
        "words are found by their 64-bit hash",
    ),
    (
        "lookup of vectors",
        "the vector of a word, without a copy; as many columns of the dense matrix",
        "null in, null out; a word it lacks: an empty list, zeros under dense",
        '"" is a word',
        _BYTES,
        "dense features are float32",
    ),
    # ---- a log's past
    (
        "shows",
        "rows of the value in earlier time buckets, the last window of them; fitted on the log",
        _PAST,
        "a value never seen: 0",
        _BYTES,
        NONE,
    ),
    (
        "clicks",
        "rows of the value with a label above 0.5 in earlier time buckets; fitted on the log",
        _PAST,
        "a value never seen: 0",
        _BYTES,
        NONE,
    ),
    (
        "rate",
        "(clicks + prior · weight) / (shows + weight) of earlier time buckets; fitted on the log",
        _PAST,
        "a value never seen: prior",
        _BYTES,
        "from 0 to 1",
    ),
    (
        "history",
        "the values of earlier events of the same key as lists, newest last, and their ages in seconds",
        "a null key or time has an empty history and is not an event; an event with a null value is left out",
        "without events: an empty list",
        _BYTES,
        "at most last= values (100 unless given); memory beyond budget= is an error",
    ),
    (
        "past",
        "count, sum, mean, decayed sum or distinct values of earlier events of the same key, or seconds since the last",
        "a null key or time sees nothing and is not an event; null, NaN and infinite values are not summed",
        "without events: 0, and null for mean and since",
        _BYTES,
        "sums are float64; a whole number beyond 2^53 is an error",
    ),
    # ---- other views
    (
        "join",
        'the columns of the row with this key; how="inner" drops rows whose key is missing',
        _MISSING,
        '"" is a key; a view without rows: every key is missing',
        _BYTES,
        "keys are found by their 64-bit hash; two keys of one view that share it are an error",
    ),
    (
        "merge",
        "the columns of the row with the same instance id",
        "as join; a null id is an error where both sides stream",
        "as join",
        _BYTES,
        "out of id order: an error where the index would pass its budget",
    ),
    # ---- one's own
    (
        "encode",
        "the vector that a cb.tables.Encoder computes of a text or of an image; as many columns of the dense matrix",
        "null in, null out",
        '"" is a text',
        "a text that is not UTF-8 is an error",
        "dense features are float32",
    ),
    (
        "operator",
        "a vectorized Python function over Arrow or NumPy columns with declared kinds",
        "nulls reach the function (NumPy: NaN or None); nulls it returns are an error unless nullable=True",
        "may be called with any number of rows",
        "str columns may hold bytes that are not UTF-8",
        "a result that does not fit its kind is an error",
    ),
)
