"""Chunks that are put together: all rows, or an error that names the column which is too large for one array."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ctrbox.columns import one_array as module
from ctrbox.columns.one_array import one_array, one_batch
from ctrbox.errors import DataError

TEXTS = pa.chunked_array([["a", None], [], ["bcd"]])
HUGE = (1 << 31) - 100


def claimed() -> pa.Array:
    """One string of almost 2 GiB, of which there is no memory: whoever copies it crashes."""
    offsets = pa.array([0, HUGE], pa.int32()).buffers()[1]
    held = pa.py_buffer(b"x")
    return pa.Array.from_buffers(pa.utf8(), 1, [None, offsets, pa.foreign_buffer(held.address, HUGE, held)])


def in_list() -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), claimed())


def test_all_rows_are_in_one_batch_and_in_one_array() -> None:
    table = pa.table({"text": TEXTS, "n": pa.chunked_array([[1], [2, 3]])})
    assert one_batch(table).to_pylist() == table.to_pylist()
    assert one_array("text", TEXTS).to_pylist() == ["a", None, "bcd"]
    assert one_array("text", TEXTS.slice(0, 2)).to_pylist() == ["a", None]
    empty = one_batch(table.slice(0, 0))
    assert (empty.num_rows, empty.schema) == (0, table.schema)
    assert one_array("text", pa.chunked_array([], pa.utf8())).to_pylist() == []
    large = pa.table({"text": pa.chunked_array([["a"], ["b"]], pa.large_utf8())})
    assert one_batch(large).to_pydict() == {"text": ["a", "b"]}


def test_more_text_than_an_array_holds_is_an_error_that_names_the_column() -> None:
    told = (
        "column 'text' of 2 rows cannot be put into one array, which holds at most 2 GiB of text: it has 4,294,967,096 bytes; "
        "store the column as large_string (large_binary), or pass fewer rows at a time"
    )
    column = pa.chunked_array([claimed(), claimed()])
    for call in (lambda: one_batch(pa.table({"n": [1, 2], "text": column})), lambda: one_array("text", column)):
        with pytest.raises(DataError) as met:
            call()
        assert str(met.value) == told
    # One chunk is not copied.
    assert len(one_array("text", pa.chunked_array([claimed()]))) == 1
    assert one_batch(pa.table({"text": pa.chunked_array([claimed()])})).num_rows == 1


def test_more_text_in_lists_than_an_array_holds_is_an_error_too() -> None:
    column = pa.chunked_array([in_list(), in_list()])
    started = (
        r"^column 'tags' of 2 rows cannot be put into one array, which holds at most 2 GiB of text: offset overflow"
    )
    for call in (lambda: one_batch(pa.table({"tags": column})), lambda: one_array("tags", column)):
        with pytest.raises(DataError, match=started):
            call()


def test_the_limit_is_that_of_the_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 4)
    assert one_array("text", TEXTS).to_pylist() == ["a", None, "bcd"]
    monkeypatch.setattr(module, "MOST_BYTES", 3)
    with pytest.raises(DataError, match="it has 4 bytes"):
        one_array("text", TEXTS)
    with pytest.raises(DataError, match="it has 4 bytes"):
        one_batch(pa.table({"text": TEXTS.cast(pa.binary())}))
