"""Sentences that several rows of the operator tables share.

docs/operators.md contains those of `GENERAL` once for all operators, so the tables leave them out.
"""

NULL = "A null gives a null."
POINTS = "Characters are Unicode code points. A byte that is not part of valid UTF-8 counts as one character."
BYTES = "Strings are compared by their bytes, without Unicode normalization."
KEPT = "Bytes stay as they are, whether they are valid UTF-8 or not."
NONE = "Nothing can overflow."
NO = "–"  # the column does not apply to the operator
GENERAL = (NULL, POINTS, BYTES, KEPT, NONE, NO)

EITHER = "The result is null if any argument is null."
