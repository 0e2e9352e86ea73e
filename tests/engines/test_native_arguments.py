"""Native functions called directly: blocks at their boundaries against a slow twin, and arguments that do not fit each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox import _native

native: Any = _native  # arguments of wrong types are meant

# ---- ids


def descent(ids: np.ndarray) -> int:
    return next((r for r in range(1, len(ids)) if ids[r] <= ids[r - 1]), -1)


@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1024, 1025, 1026, 2048, 2049, 2050])
def test_the_first_id_that_does_not_rise_is_found_wherever_a_block_ends(size: int) -> None:
    ids = np.arange(size) * 2
    assert native.first_descent(ids) == -1
    for at in {1, 2, 1023, 1024, 1025, 1026, 2048, 2049, size - 1} & set(range(1, size)):
        for fall in (2, 3):  # the same id again, and a smaller one
            changed = ids.copy()
            changed[at] -= fall
            assert native.first_descent(changed) == descent(changed) == at
            changed[-1] = -7  # a later one is not told
            assert native.first_descent(changed) == descent(changed)


def aligned(ids: np.ndarray, others: np.ndarray) -> tuple[list[int], int]:
    places = {int(other): at for at, other in reversed(list(enumerate(others)))}
    rows = [places.get(int(i), -1) for i in ids]
    return rows, sum(row >= 0 for row in rows)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, 96, 100])
@pytest.mark.parametrize("gone", [(), (0,), (31,), (32,), (33,), (5, 40, 64), (95,)])
def test_rows_of_two_sides_meet_by_their_ids_wherever_a_block_ends(size: int, gone: tuple[int, ...]) -> None:
    ids = np.arange(size) * 3 + 1
    fewer = np.delete(ids, [g for g in gone if g < size])
    for one, other in ((ids, fewer), (fewer, ids), (ids, ids), (ids, ids + 1), (ids, ids[:0]), (ids, ids[:32])):
        rows, found = native.align(one, other)
        assert (rows.tolist(), found) == aligned(one, other)


def test_an_index_keeps_the_first_or_the_last_row_of_a_key_and_tells_the_first_two() -> None:
    hashes = np.array([5, 6, 7, 6, 5, 6], np.uint64)
    index, first, second = native.Index.build(hashes, False)
    assert (index.rows, first, second) == (3, 1, 3)
    index, first, second = native.Index.build(hashes, True)
    assert (index.rows, first, second) == (3, -1, -1)
    index, first, second = native.Index.build(hashes[:3], False)
    assert (index.rows, first, second) == (3, -1, -1)


# ---- rows for a program


def doubled() -> Any:
    program = native.Program(3)
    program.emit(0, program.load(0, 0, "i", True, "column x"))
    program.finish()
    return program


def rows_of(pieces: list[Any]) -> list[int | None]:
    frame, _ = doubled().run_frame(pieces, ["i"], [True], [])
    _, valid, (values,) = frame.export(0)
    there = [True] * len(values) if valid is None else valid.astype(bool).tolist()
    return [v if t else None for v, t in zip(values.tolist(), there, strict=True)]


def test_pieces_name_rows_by_their_place_or_by_an_index() -> None:
    frame = native.Frame.from_arrow(pa.record_batch({"x": pa.array([10, 11, 12, 13])}))
    index = np.array([3, -1, 0, 2], np.int32)
    assert rows_of([(4, [(frame, None, 0)])]) == [10, 11, 12, 13]
    assert rows_of([(2, [(frame, None, 2)])]) == [12, 13]
    assert rows_of([(4, [(frame, index, 0)])]) == [13, None, 10, 12]
    assert rows_of([(2, [(frame, index, 2)])]) == [10, 12]
    assert rows_of([(1, [(frame, index, 1)])]) == [None]
    piece: Any
    for piece in ((3, [(frame, None, 2)]), (5, [(frame, None, 0)]), (1, [(frame, None, -1)])):
        with pytest.raises(ValueError, match="the rows lie outside the frame"):
            rows_of([piece])
    for piece in ((5, [(frame, index, 0)]), (1, [(frame, index, 4)])):
        with pytest.raises(ValueError, match="fewer indices than rows"):
            rows_of([piece])
    for wrong in ([4], [-2], [0, 1, 4]):
        with pytest.raises(ValueError, match="an index points outside its frame"):
            rows_of([(len(wrong), [(frame, np.array(wrong, np.int32), 0)])])


# ---- lookups and pooling


def a_lookup() -> Any:
    """Two rows: field 0 has one key per row, field 1 lists of two and of none."""
    lists = (np.array([7, 8]), np.array([0, 2, 2]))
    return native.Lookup.of([(np.array([7, 9]), None), lists], 2, 1)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_a_lookup_has_each_key_once_and_offsets_of_every_row() -> None:
    lookup = a_lookup()
    assert sorted(lookup.keys.tolist()) == [7, 8, 9]
    assert lookup.keys[lookup.inverse[:4]].tolist() == [7, 9, 7, 8]
    assert (lookup.rows, list(lookup.starts)) == (2, [0, 2, 4])
    assert [lookup.single(field) for field in range(3)] == [True, False, False]
    for offsets in ([0, 2], [0, 1, 2, 2]):
        with pytest.raises(ValueError, match=r"offsets are \(\d\); expected \(3\)"):
            native.Lookup.of([(np.array([7, 8]), np.array(offsets))], 2, 1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([(2, 0)], "each pooled field must exist and may be pooled only once"),
        ([(0, 0), (0, 1)], "each pooled field must exist and may be pooled only once"),
        ([(0, -1)], r"the kind of pooling must be 0 \(sum\), 1 \(mean\) or 2 \(max\)"),
        ([(0, 3)], r"the kind of pooling must be 0 \(sum\), 1 \(mean\) or 2 \(max\)"),
    ],
)
def test_columns_to_pool_exist_and_come_once(columns: list[tuple[int, int]], message: str) -> None:
    lookup = a_lookup()
    with pytest.raises(ValueError, match=message):
        lookup.pool(zeros(3, 4), False, columns, 1)
    with pytest.raises(ValueError, match=message):
        lookup.pool_gradient(None, None, np.zeros((2, 0, 4), np.int32), 4, False, columns, 1)


def test_rows_and_gradients_have_the_shape_of_the_lookup() -> None:
    lookup, columns = a_lookup(), [(0, 0), (1, 2)]
    rows = np.arange(15, dtype=np.float32).reshape(3, 5)
    weights, vectors, winners = lookup.pool(rows, True, columns, 1)
    assert (weights.shape, vectors.shape, winners.shape) == ((2, 2), (2, 2, 4), (2, 1, 5))
    for wrong in (zeros(2, 5), zeros(4, 5)):
        with pytest.raises(ValueError, match=r"rows are \(\d\); expected \(3\)"):
            lookup.pool(wrong, True, columns, 1)
        with pytest.raises(ValueError, match=r"rows are \(\d\); expected \(3\)"):
            lookup.sequence(wrong, True, 1, 2, 1)
    with pytest.raises(ValueError, match="rows without columns hold no first-order weight"):
        lookup.pool(zeros(3, 0), True, columns, 1)
    assert lookup.pool(zeros(3, 1), True, columns, 1)[1].shape == (2, 2, 0)
    assert lookup.pool(rows, False, columns, 1)[0] is None

    def gradient(weights: Any, vectors: Any, winners: Any) -> Any:
        return lookup.pool_gradient(weights, vectors, winners, 4, True, columns, 1)

    assert gradient(zeros(2, 2), zeros(2, 2, 4), winners).shape == (3, 5)
    shape: tuple[int, ...]
    for shape in ((1, 2), (2, 1)):
        with pytest.raises(ValueError, match=r"gradients of weights are .*; expected \(2, 2\)"):
            gradient(zeros(*shape), None, winners)
    for shape in ((1, 2, 4), (2, 1, 4), (2, 2, 3)):
        with pytest.raises(ValueError, match=r"gradients of vectors are .*; expected \(2, 2, 4\)"):
            gradient(None, zeros(*shape), winners)
    for shape in ((1, 1, 5), (2, 2, 5), (2, 1, 4)):
        with pytest.raises(ValueError, match=r"winners are .*; expected \(2, 1, 5\)"):
            gradient(None, None, np.zeros(shape, np.int32))


def test_sequences_are_of_a_field_that_exists() -> None:
    lookup, rows = a_lookup(), np.arange(15, dtype=np.float32).reshape(3, 5)
    found = lookup.sequence(rows, True, 1, 2, 1)
    number = {int(key): k for k, key in enumerate(lookup.keys)}
    assert found.tolist() == [[rows[number[7], 1:].tolist(), rows[number[8], 1:].tolist()], [[0.0] * 4, [0.0] * 4]]
    assert lookup.sequence(zeros(3, 1), True, 1, 2, 1).shape == (2, 2, 0)
    for field, given in ((2, rows), (0, zeros(3, 0))):
        with pytest.raises(ValueError, match="there is no field or no column with this number"):
            lookup.sequence(given, True, field, 2, 1)
    given = np.ones((2, 2, 4), np.float32)
    back = lookup.sequence_gradient(given, True, 1, 1)
    assert back.sum(axis=1).tolist() == [4.0 if key in (7, 8) else 0.0 for key in lookup.keys]
    assert not back[:, 0].any()
    with pytest.raises(ValueError, match="there is no field"):
        lookup.sequence_gradient(given, True, 2, 1)
    with pytest.raises(ValueError, match=r"gradients of vectors are \(3\); expected \(2\)"):
        lookup.sequence_gradient(zeros(3, 2, 4), True, 1, 1)


# ---- towers


def tower(dense: int = 2, columns: Any = ((0, 0, True),), **changed: Any) -> Any:
    moments = {"seen": np.zeros(1), "mean": np.zeros(dense), "spread": np.zeros(dense)}
    given: dict[str, Any] = {**moments, "bias": zeros(1), "bias_gradient": zeros(1), **changed}
    return native.Network(4, True, list(columns), dense, **given)


@pytest.mark.parametrize(
    "changed",
    [
        {"seen": None},
        {"mean": None},
        {"spread": None},
        {"seen": np.zeros(2)},
        {"mean": np.zeros(1)},
        {"spread": np.zeros(3)},
    ],
)
def test_a_tower_has_moments_of_each_dense_column(changed: dict[str, Any]) -> None:
    tower()
    with pytest.raises(ValueError, match="moments are one a dense column"):
        tower(**changed)
    tower(dense=0, **changed)


@pytest.mark.parametrize("changed", [{"bias": zeros(2)}, {"bias_gradient": zeros(0)}])
def test_a_tower_has_one_bias(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the bias is one number"):
        tower(**changed)


def test_weights_of_a_tower_have_gradients_of_their_shape() -> None:
    made = tower()
    made.set_first(zeros(2), zeros(2))
    made.set_pairs(zeros(2, 4), zeros(2, 4))
    made.add_layer(zeros(6, 3), zeros(6, 3), zeros(3), zeros(3), 0.0)
    made.add_layer(zeros(3, 1), zeros(3, 1), None, None, 0.999)
    for sizes in ((1, 2), (2, 3)):
        with pytest.raises(ValueError, match="first-order weights are one a dense column"):
            made.set_first(*(zeros(n) for n in sizes))
    for shapes in (((1, 4), (2, 4)), ((2, 3), (2, 4)), ((2, 4), (1, 4)), ((2, 4), (2, 3))):
        with pytest.raises(ValueError, match=r"pair weights are \(dense columns, dim\)"):
            made.set_pairs(*(zeros(*shape) for shape in shapes))
    for shape in ((5, 3), (6, 2)):
        with pytest.raises(ValueError, match="a layer's gradient has the shape of its weights"):
            made.add_layer(zeros(6, 3), zeros(*shape), None, None, 0.0)
    for bias in ((zeros(3), None), (zeros(2), zeros(2)), (zeros(3), zeros(2))):
        with pytest.raises(ValueError, match="a layer's bias has one number an output, and a gradient"):
            made.add_layer(zeros(6, 3), zeros(6, 3), *bias, 0.0)
    for drop in (-0.01, 1.0):
        with pytest.raises(ValueError, match="dropout is from 0 to less than 1"):
            made.add_layer(zeros(6, 3), zeros(6, 3), None, None, drop)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        ({"weight": np.ones(2, np.float32)}, None),
        ({"columns": [(2, 0, True)]}, "each field is read once, and must exist"),
        ({"columns": [(0, 0, True), (0, 0, False)]}, "each field is read once, and must exist"),
        ({"columns": [(0, 3, True)]}, "a kind of pooling is"),
        ({"columns": [(0, -1, True)]}, "a kind of pooling is"),
        ({"rows": zeros(2, 5)}, "rows are one per key"),
        ({"rows": zeros(3, 4)}, "rows are one per key"),
        ({"logs": zeros(1, 2)}, "dense columns do not fit the batch"),
        ({"logs": zeros(2, 1)}, "dense columns do not fit the batch"),
        ({"logits": zeros(3)}, "logits are one per row"),
        ({"label": zeros(1)}, "labels and weights are one per row"),
        ({"weight": zeros(3)}, "labels and weights are one per row"),
        ({"gradient": zeros(2, 5)}, "gradients have the shape of rows"),
        ({"gradient": zeros(3, 4)}, "gradients have the shape of rows"),
        ({"seeds": [1, 2]}, "seeds are one per layer"),
    ],
)
def test_a_step_of_a_tower_gets_parts_that_fit(changed: dict[str, Any], message: str | None) -> None:
    made = tower(columns=changed.pop("columns", [(0, 0, True), (1, 1, False)]))
    made.add_layer(zeros(10, 1), zeros(10, 1), None, None, 0.0)
    given = {
        "rows": zeros(3, 5),
        "logs": zeros(2, 2),
        "label": zeros(2),
        "weight": None,
        "seeds": [1],
        "logits": zeros(2),
    }
    given |= {"gradient": zeros(3, 5), **changed}
    if message is None:
        assert made.learn(a_lookup(), None, **given, threads=1) == pytest.approx(np.log(2), abs=1e-6)
        return
    with pytest.raises(ValueError, match=message):
        made.learn(a_lookup(), None, **given, threads=1)
    if changed.keys() & {"rows", "logs", "logits"}:
        with pytest.raises(ValueError, match=message):
            made.score(a_lookup(), None, given["rows"], given["logs"], given["logits"], 1)


def test_a_mask_of_dropout_keeps_its_share_and_scales_the_rest() -> None:
    mask = zeros(200, 50)
    native.dropout_mask(3, 200, 50, 0.25, mask)
    assert sorted({*mask.ravel().tolist()}) == [0.0, pytest.approx(1 / 0.75)]
    assert abs((mask == 0).mean() - 0.25) < 0.02
    native.dropout_mask(3, 200, 50, 0.0, mask)
    assert (mask == 1).all()
    for shape in ((199, 50), (200, 49)):
        with pytest.raises(ValueError, match="the mask has another shape"):
            native.dropout_mask(3, 200, 50, 0.25, zeros(*shape))
    for drop in (-0.1, 1.0):
        with pytest.raises(ValueError, match="dropout is from 0 to less than 1"):
            native.dropout_mask(3, 200, 50, drop, mask)


# ---- others


@pytest.mark.parametrize(
    ("bucket", "first", "good"),
    [
        (0.5, 0, True),
        (0.5, 1 << 21, True),
        (0.5, -(1 << 21), True),
        (0.5, (1 << 21) + 1, False),
        (0.5, -(1 << 21) - 1, False),
        (0.0, 0, False),
        (-1.0, 0, False),
        (float("nan"), 0, False),
    ],
)
def test_buckets_are_above_zero_and_codes_begin_within_their_bound(bucket: float, first: int, good: bool) -> None:
    for convert, given in ((native.quantize, zeros(3)), (native.dequantize, np.zeros(3, np.uint16))):
        if good:
            assert len(convert(given, bucket, first)) == 3
            continue
        with pytest.raises(ValueError, match=r"the bucket must be above 0 and the first code within 2\^21"):
            convert(given, bucket, first)


def test_a_column_chunk_has_a_codec_and_a_width_that_exist() -> None:
    chunk = np.zeros(4, np.uint8)
    for codec in (-1, 3):
        with pytest.raises(ValueError, match="codec is not known"):
            native.decode_parquet_column(chunk, codec, 8, False, 1)
    for width in (1, 5, 7, 16):
        with pytest.raises(ValueError, match=r"values must have 4 or 8 bytes, or be strings \(0\)"):
            native.decode_parquet_column(chunk, 0, width, False, 1)


def test_column_chunks_that_a_file_does_not_hold_are_left_to_others(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(100))
    places = [(-1, 10), (0, -1), (0, 101), (100, 1), (2**62, 2**62), (2**63 - 1, 2**63 - 1), (0, 100), (100, 0)]
    with path.open("rb") as file:
        done, _ = native.read_parquet_columns(file.fileno(), [(*place, 0, 8, False) for place in places], 1)
        assert done == [False] * len(places)
        with pytest.raises(ValueError, match="codec is not known"):
            native.read_parquet_columns(file.fileno(), [(0, 10, 3, 8, False)], 1)


def test_rows_are_picked_by_positions_that_exist() -> None:
    rows = np.array([5, -1, 7], np.int32)
    assert native.pick_rows(rows, np.array([2, 2, 0, 1], np.int32)).tolist() == [7, 7, 5, -1]
    assert native.pick_rows(rows[:0], rows[:0]).tolist() == []
    for position in (3, -1):
        with pytest.raises(IndexError, match="a position lies outside the rows"):
            native.pick_rows(rows, np.array([0, position], np.int32))


def test_records_are_put_where_room_was_made_for_them() -> None:
    def two_rows() -> Any:
        made = native.Records(["i"], [False])
        made.add_blank()
        made.add_blank()
        return made

    records = two_rows()
    with pytest.raises(ValueError, match="cannot be appended to themselves"):
        records.place(records)
    place = records.place(two_rows())
    for wrong in ((place[0] + 8, place[1]), (place[0], place[1] + 1), (place[0] + 4, place[1]), (2**63, 2**63)):
        with pytest.raises(IndexError, match="no room was made for these records"):
            records.put(wrong, two_rows())
    other = two_rows()
    records.put(place, other)
    assert (records.rows, other.rows) == (4, 0)


def test_decimals_have_whole_values_of_a_known_width() -> None:
    assert native.decimals_to_doubles(np.array([25, 0, 0, 0, 255, 255, 255, 255], np.uint8), 4, 1).tolist() == [
        2.5,
        -0.1,
    ]
    for width in (0, 2, 12, 64):
        with pytest.raises(ValueError, match="a decimal has 4, 8, 16 or 32 bytes"):
            native.decimals_to_doubles(np.zeros(64, np.uint8), width, 0)
    for size in (3, 5, 7):
        with pytest.raises(ValueError, match="the bytes of decimals end in the middle of a value"):
            native.decimals_to_doubles(np.zeros(size, np.uint8), 4, 0)


def test_candidates_are_described_by_kinds_and_salts_that_exist() -> None:
    for kind in "bifst":
        assert native.RequestRows([("a", kind, -1, 1, False, 0)], [], 3).read(b'{"candidates": []}') is not None or kind
    with pytest.raises(ValueError, match="a kind must be one of b, i, f, s and t"):
        native.RequestRows([("a", "k", 0, 0, False, 0)], [], 3)
    native.ModelFields([0], [1, 2], [1, 2])
    for sparse, salts, numbers in (([0], [1], [1, 2]), ([0, 1], [1], [1])):
        with pytest.raises(ValueError, match="expected one salt for each number"):
            native.ModelFields(sparse, salts, numbers)


def test_there_are_64_shards() -> None:
    native.TableScan(63, 0)
    with pytest.raises(ValueError, match="expected the number of a shard, 0 to 63"):
        native.TableScan(64, 0)


@pytest.mark.parametrize("keys", [1, 2, 2047, 2048, 2049, 5000])
def test_published_rows_are_found_and_what_is_lost_is_named(keys: int) -> None:
    known = np.arange(keys) * 7
    rows = np.arange(2 * keys, dtype=np.float32).reshape(keys, 2) + 1
    table = native.PublishedRows(known, rows)
    assert len(table) == keys
    asked = np.concatenate([known[::-1], known[:1] + 1])
    found, lost = table.find(asked)
    assert found[:-1].tolist() == rows[::-1].tolist()
    assert (found[-1].tolist(), lost.tolist()) == ([0.0, 0.0], [keys])
    with pytest.raises(ValueError, match=r"rows must have the shape \(keys, width\)"):
        native.PublishedRows(known, rows[:-1])
