"""Phrases that rows of several kinds of operators share in the operator table of docs/operators.md."""

NULL = "null in, null out"
EITHER = "null if any is"
NO = "–"
NONE = "cannot overflow"
