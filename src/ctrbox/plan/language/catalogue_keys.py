"""Rows of the table in docs/operators/keys.md: name, what it does, null, empty, Unicode, overflow."""

from ctrbox.plan.language.catalogue_phrases import BYTES, EITHER, KEPT, NO, NONE, NULL

_PAST = (
    "The result is null if a member or the time is null. Such a row is not counted, and neither is a row whose label is "
    "null or NaN."
)
_DENSE = "As a dense feature, the values are rounded to float32."

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # ---- where values come from
    (
        "column",
        "Returns a column of the view, of a joined view, or one that `with_columns` made. The field of a struct is a column "
        "named `struct.field`.",
        "A null stays a null. Null elements of a list are dropped.",
        "An empty value stays as it is.",
        KEPT,
        "A uint64 above 2^63 − 1 is an error that names the row.",
    ),
    (
        "literal",
        "Returns a constant: a number, str, bytes, bool or datetime. `lit([])` is the fill value of a list.",
        "`lit(None)` is refused.",
        "An empty value stays as it is.",
        "A str is stored as UTF-8, and bytes are stored as they are.",
        "An int that does not fit into 64 bits is refused.",
    ),
    # ---- keys
    (
        "hash",
        "Returns a 64-bit hash of the bytes and the kind of a value, so that 5 and '5' have different hashes. A list gives one "
        "hash for each element. A float cannot be hashed.",
        NULL,
        "An empty string has a hash. An empty list gives an empty list.",
        BYTES,
        "Two different ints, and two different times, never have the same hash. Two different strings have the same hash with "
        "a probability of 2^−64.",
    ),
    (
        "key",
        "Returns the key of a value: its hash, mixed with the name of a space. The space is the name of the feature unless "
        "`space=` names another one. A list gives one key for each element.",
        NULL,
        "An empty string has a key. An empty list gives no key.",
        BYTES,
        "Keys collide as rarely as hashes. The key 0, which means “no value”, is never given.",
    ),
    (
        "as_key",
        "Returns whole numbers that are already keys, without hashing them again.",
        f"{NULL} Write `.fill(0)` before it to replace a null by key 0, which means “no value”, or `.fill([])` for no key.",
        "An empty list gives no key.",
        NO,
        "All 64 bits of the number are kept.",
    ),
    (
        "cross",
        "Returns one key for each combination of the values of two or more members. The order of the members matters. If "
        "members are lists, all combinations of their elements get keys; those of the first member change most slowly.",
        EITHER,
        "An empty list among the members gives no key.",
        BYTES,
        "A row gets at most `limit` keys (default: 1,024). Rows with more combinations are counted in `plan.warnings`.",
    ),
    # ---- dictionaries
    (
        "lookup",
        "Returns the id of a word in a dictionary, or the ids of the words of a list. If a word occurs twice in the dictionary, "
        "the first id counts.",
        f"{NULL} A word that the dictionary does not have gives the default or, without a default, a null. A list needs a "
        "default.",
        "An empty string is a word like any other. An empty list gives an empty list.",
        BYTES,
        "The dictionary finds words by their 64-bit hash.",
    ),
    (
        "lookup of vectors",
        "Returns the vector of a word in a dictionary of vectors. As a dense feature, it takes one column for each number of "
        "the vector.",
        f"{NULL} A word that the dictionary does not have gives an empty list, which is a vector of zeros in a dense feature.",
        "An empty string is a word like any other.",
        BYTES,
        _DENSE,
    ),
    # ---- a log's past
    (
        "shows",
        "Returns the number of rows with the same value in earlier buckets of time. `every=` is the length of a bucket "
        '(default: "1d", one day), and `window=` the time that is counted (default: all earlier buckets). '
        " It is fitted on the log.",
        _PAST,
        "A value that has not occurred gives 0.",
        BYTES,
        NONE,
    ),
    (
        "clicks",
        "Returns the number of rows with the same value and a label above 0.5 in earlier buckets of time. It is fitted on the "
        "log.",
        _PAST,
        "A value that has not occurred gives 0.",
        BYTES,
        NONE,
    ),
    (
        "rate",
        "Returns (clicks + prior · weight) / (shows + weight), with the shows and clicks of earlier buckets of time. By "
        "default, `prior` is 0.05 and `weight` is 20. It is fitted on the log.",
        _PAST,
        "A value that has not occurred gives `prior`.",
        BYTES,
        "The result is from 0 to 1.",
    ),
    (
        "history",
        "Returns the values of earlier events of the same key as a list, the newest last, and a list of their ages in seconds.",
        "A row whose key or time is null has an empty history and is not an event itself. An event with a null value is left "
        "out.",
        "Without earlier events, the list is empty.",
        BYTES,
        "The list has at most `last` values (default: 100). If the events need more memory than `budget=`, there is an error.",
    ),
    (
        "past",
        "Returns a number computed from the earlier events of the same key: their count, the sum, mean or decayed sum of a "
        "value, the number of distinct values, or the seconds since the last event.",
        "A row whose key or time is null has no earlier events and is not an event itself. Values that are null, NaN or "
        "infinite are not summed.",
        "Without earlier events, the result is 0, or null for the mean and the seconds since the last event.",
        BYTES,
        "Sums are computed in float64. A whole number beyond 2^53 is an error.",
    ),
    # ---- other views
    (
        "join",
        'Adds the columns of the row of another view that has the same key. With `how="inner"`, rows whose key is missing there '
        "are dropped.",
        "A null key, or a key that the view does not have, gets nulls, which the `fill` of the joined view replaces.",
        "An empty string is a key like any other. If the joined view has no rows, every key is missing.",
        BYTES,
        "The join finds keys by their 64-bit hash. If two keys of the joined view have the same hash, there is an error.",
    ),
    (
        "merge",
        "Adds the columns of the row with the same instance id, for example of features that were computed earlier.",
        "A missing id gets nulls, as in a join. If both sides are read as streams, a null id is an error.",
        "An empty string is an id like any other. If the merged view has no rows, every id is missing.",
        BYTES,
        "If the ids are not in order, an index of them is kept in memory. If the index exceeds its budget, there is an error.",
    ),
    # ---- one's own
    (
        "encode",
        "Returns the vector that a `cb.tables.Encoder` computes of a text or an image. As a dense feature, it takes one column "
        "for each number of the vector.",
        NULL,
        "An empty string is a text like any other.",
        "A text that is not UTF-8 is an error.",
        _DENSE,
    ),
    (
        "operator",
        "Applies a Python function of your own to whole columns, as Arrow or NumPy arrays of declared kinds "
        "([own_operators.md](../features/own_operators.md)).",
        "Nulls reach the function, in NumPy arrays as NaN or None. If the function returns a null, there is an error unless "
        "`nullable=True`.",
        "The function may be called with any number of rows.",
        "Columns of kind str may contain bytes that are not UTF-8.",
        "If a result does not fit its declared kind, there is an error.",
    ),
)
