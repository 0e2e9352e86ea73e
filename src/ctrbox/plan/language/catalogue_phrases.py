"""Phrases that several rows of the operator table in docs/operators.md share."""

NULL = "null in, null out"
EITHER = "null if any is"
NO = "–"
NONE = "cannot overflow"
