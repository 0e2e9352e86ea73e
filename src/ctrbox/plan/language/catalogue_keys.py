"""Rows of the table in docs/operators/keys.md: name, what it does, null, empty, Unicode, overflow."""

from ctrbox.plan.language.catalogue_phrases import BYTES, EITHER, KEPT, NO, NONE, NULL

_PAST = (
    "The result is null if one of the values or the time is null. Rows with such a null, and rows whose label is null or NaN, "
    "are not counted."
)
_DENSE = "In a dense feature, the numbers of the vector are rounded to float32."

ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # ---- where values come from
    (
        "column",
        "Returns a column of the log or of a joined view, or a column that `with_columns` made. The field `f` of a struct column "
        "`s` is the column `s.f`.",
        "A null stays a null. Null elements of a list are dropped.",
        "An empty string or list stays as it is.",
        KEPT,
        "A uint64 value above 2^63 − 1 causes an error that names the row.",
    ),
    (
        "literal",
        "Returns a constant: a number, str, bytes, bool or datetime. `lit([])` is an empty list, which can replace the "
        "nulls of a list column.",
        "`lit(None)` is refused.",
        "An empty string stays as it is.",
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
        "Two different values have the same key as rarely as they have the same hash. No value has the key 0, which means “no "
        "value”.",
    ),
    (
        "as_key",
        "Returns whole numbers that are already keys, without hashing them again.",
        f"{NULL} To give a null the key 0, which means “no value”, write `.fill(0)` before `.as_key()`. To give the null of a "
        "list column no key, write `.fill([])`.",
        "An empty list gives no key.",
        NO,
        "All 64 bits of the number are kept.",
    ),
    (
        "cross",
        "Returns one key for each combination of the values of two or more members. The order of the members matters. If "
        "members are lists, each combination of their elements gets a key. In the order of these keys, the elements of the first "
        "member change most slowly.",
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
        f"{NULL} A word that the dictionary does not contain gives the value of `default=` or, without `default=`, a null. For "
        "a list, `default=` is required.",
        "An empty string is a word like any other. An empty list gives an empty list.",
        BYTES,
        "The dictionary recognizes words by their 64-bit hashes.",
    ),
    (
        "lookup of vectors",
        "Returns the vector of a word in a dictionary of vectors. In a dense feature, each number of the vector becomes a "
        "column.",
        f"{NULL} A word that the dictionary does not contain gives an empty list, which becomes a vector of zeros in a dense "
        "feature.",
        "An empty string is a word like any other.",
        BYTES,
        _DENSE,
    ),
    # ---- a log's past
    (
        "shows",
        "Returns the number of rows with the same value in earlier buckets of time. `every=` is the length of a bucket "
        '(default: "1d", one day). `window=` says how far back buckets are counted (default: without limit). The counts are '
        "fitted on the log.",
        _PAST,
        "A value that has not occurred gives 0.",
        BYTES,
        NONE,
    ),
    (
        "clicks",
        "Returns the number of rows with the same value and a label above 0.5 in earlier buckets of time. The counts are "
        "fitted on the log.",
        _PAST,
        "A value that has not occurred gives 0.",
        BYTES,
        NONE,
    ),
    (
        "rate",
        "Returns the smoothed click rate (clicks + prior · weight) / (shows + weight), with the shows and clicks of earlier "
        "buckets of time. By default, `prior` is 0.05 and `weight` is 20. The counts are fitted on the log.",
        _PAST,
        "A value that has not occurred gives `prior`.",
        BYTES,
        "The result is from 0 to 1.",
    ),
    (
        "history",
        "Adds a column with the values of earlier events of the same key as a list, from the oldest to the newest, and a column "
        "with a list of their ages in seconds.",
        "A row whose key or time is null has an empty history and is not an event itself. An event with a null value is left "
        "out.",
        "Without earlier events, the list is empty.",
        BYTES,
        "The list has at most `last` values (default: 100). If the events need more memory than `budget=` allows, reading ends "
        "with an error.",
    ),
    (
        "past",
        "Adds a column with a number computed from the earlier events of the same key: their count, the sum, the "
        "mean or the decayed sum of a value, the number of distinct values, or the seconds since the last event.",
        "A row whose key or time is null has no earlier events and is not an event itself. Values that are null, NaN or "
        "infinite are not summed.",
        "Without earlier events, the mean and the seconds since the last event are null, and all other results are 0.",
        BYTES,
        "Sums are computed in float64. A whole number beyond 2^53 is an error.",
    ),
    # ---- other views
    (
        "join",
        'Adds to each row the columns of the row of another view that has the same key. With `how="inner"`, rows whose key has '
        "no row in the other view are dropped.",
        "If the key is null, or the other view does not contain it, the added columns are null. The `fill` of the other view "
        "replaces these nulls.",
        "An empty string is a key like any other. If the other view has no rows, no key has a row in it.",
        BYTES,
        "The join recognizes keys by their 64-bit hashes. If two keys of the other view have the same hash, the join raises an "
        "error.",
    ),
    (
        "merge",
        "Adds to each row the columns of the row of another view that has the same id, for example features that were computed "
        "earlier.",
        "If the other view does not contain the id, the added columns are null, as in a join. If CTRBox reads both views side by "
        "side, a null id is an error.",
        "An empty string is an id like any other. If the other view has no rows, no id has a row in it.",
        BYTES,
        "If the ids are not in order, CTRBox keeps an index of them in memory. If the index exceeds its budget, CTRBox raises an "
        "error.",
    ),
    # ---- one's own
    (
        "encode",
        "Returns the vector that a `cb.tables.Encoder` computes from a text or an image. In a dense feature, each number of the "
        "vector becomes a column.",
        NULL,
        "An empty string is a text like any other.",
        "A text that is not UTF-8 is an error.",
        _DENSE,
    ),
    (
        "operator",
        "Applies a Python function of your own to whole columns, as Arrow or NumPy arrays of declared kinds "
        "([own_operators.md](../features/own_operators.md)).",
        "The function receives nulls; in NumPy arrays, they are NaN or None. If the function returns a null, CTRBox raises an "
        "error, unless `nullable=True` is set.",
        "The function may be called with any number of rows.",
        "Columns of kind str may contain bytes that are not UTF-8.",
        "If a result does not have its declared kind, CTRBox raises an error.",
    ),
)
