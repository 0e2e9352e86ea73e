"""Tables of programs, joins by records, and attention, called directly: what they give, and the sentence of every refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox import _native
from ctrbox.engines.cpu.frames_and_arrow import column_of

native: Any = _native


@pytest.mark.parametrize(
    ("boundaries", "says"),
    [
        ([], None),
        ([1.0, 1.0, 2.0], None),
        ([float("-inf"), float("inf")], None),
        ([float("nan")], "bucketize: boundary 0 is NaN"),
        ([0.0, float("nan")], "bucketize: boundary 1 is NaN"),
        ([2.0, 1.5], r"bucketize: boundary 1 \(1.500000\) is below the one before it; boundaries must ascend"),
    ],
)
def test_boundaries_ascend(boundaries: list[float], says: str | None) -> None:
    if says is None:
        native.Boundaries(boundaries)
        return
    with pytest.raises(ValueError, match=says):
        native.Boundaries(boundaries)


@pytest.mark.parametrize(
    ("paths", "kinds", "says"),
    [
        (["$"], ["s"], None),
        (["$.a_b-9.é['x y'][\"q\\\"\"]['it\\'s']['\\\\'][2147483647]"], ["*f"], None),
        (["$.a"] * 32, ["i"] * 32, None),
        (["$.a"] * 33, ["i"] * 33, "JSON: 33 paths; from 1 to 32 are possible"),
        ([], [], "JSON: 0 paths; from 1 to 32 are possible"),
        (["$.a"], ["i", "i"], "JSON: expected one kind for each path"),
        (["$.a"], ["t"], r"JSON path '\$.a': no result of kind 't'; there are s, i, f, b, \*s, \*i, \*f"),
        (["$.a"], ["*b"], "no result of kind"),
        ([""], ["i"], r"a path starts with '\$' at position 0"),
        (["a"], ["i"], r"a path starts with '\$' at position 0"),
        (["$a"], ["i"], r"'.' or '\[' was expected at position 1"),
        (["$."], ["i"], "a name was expected .* at position 2"),
        (["$.*"], ["i"], r"'\*' is not supported at position 2"),
        (["$..a"], ["i"], "'..' is not supported at position 2"),
        (["$['a\\n']"], ["i"], "only the quote and the backslash can be escaped at position 5"),
        (["$['a\\"], ["i"], "only the quote and the backslash can be escaped at position 5"),
        (["$['a"], ["i"], "the quote is not closed at position 4"),
        (["$[-1]"], ["i"], "an index that counts from the end is not supported at position 2"),
        (["$[]"], ["i"], "an index or a quoted key was expected at position 2"),
        (["$[2147483648]"], ["i"], "the index is too large at position 2"),
        (["$[1"], ["i"], "']' was expected at position 3"),
        (["$[1x"], ["i"], "']' was expected at position 3"),
        (["$" + "[0]" * 64], ["i"], None),
        (["$" + "[0]" * 65], ["i"], "more than 64 levels at position 196"),
    ],
)
def test_paths_of_json(paths: list[str], kinds: list[str], says: str | None) -> None:
    if says is None:
        native.JsonPaths(paths, kinds)
        return
    with pytest.raises(ValueError, match=says):
        native.JsonPaths(paths, kinds)


def test_a_program_is_finished_before_it_runs_and_not_changed_after() -> None:
    program = native.Program(2)
    register = program.load(0, 0, "i", False, "column x")
    program.emit(0, register)
    frame = native.Frame.from_arrow(pa.record_batch({"x": pa.array([1, 2, 3])}))
    pieces = [(3, [(frame, None, 0)])]
    with pytest.raises(RuntimeError, match="the program is not finished"):
        program.run_frame(pieces, ["i"], [False], [])
    program.finish()
    made, _ = program.run_frame(pieces, ["i"], [False], [])
    assert column_of(made, 0).to_pylist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match="the program is finished"):
        program.load(0, 0, "i", False, "column x")
    assert native.Program(0).chunk_rows == 1


def test_a_call_has_at_most_four_whole_numbers_two_floats_and_two_texts() -> None:
    program = native.Program(2)
    register = program.load(0, 0, "i", False, "column x")

    def call(ints: int, floats: int, texts: int) -> None:
        given = [0] * ints, [0.0] * floats, [b""] * texts
        program.call("neg", "i", [register], ["i"], [False], *given, None, False)

    call(4, 2, 2)
    for counts in ((5, 0, 0), (0, 3, 0), (0, 0, 3)):
        with pytest.raises(ValueError, match="operator 'neg' has too many parameters"):
            call(*counts)
    name, args = next(
        (line.partition("(")[0], line.partition("(")[2][:-1])
        for line, facts in native.bodies().items()
        if facts[3] and line.endswith("(f)") and facts[0] in ("i", "b")
    )
    register = program.load(0, 1, "f", False, "column y")
    with pytest.raises(ValueError, match=f"'{name}' returns nulls"):
        program.call(name, args, [register], [native.bodies()[f"{name}({args})"][0]], [False], [], [], [], None, False)


# ---- joins


KINDS = ["i", "s", "f", "b", "*i", "*s"]


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64])
def test_rows_are_joined_by_their_records_and_what_is_missing_is_counted(rows: int) -> None:
    numbers = list(range(rows))
    values: dict[str, list[Any]] = {
        "i": [n * 10 for n in numbers],
        "s": [f"text {n} " * (n % 4) for n in numbers],
        "f": [None if n % 3 == 1 else n / 2 for n in numbers],
        "b": [n % 2 == 0 for n in numbers],
        "*i": [list(range(n % 5)) for n in numbers],
        "*s": [[f"{k}" * k for k in range(n % 4)] for n in numbers],
    }
    types = [pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.list_(pa.int64()), pa.list_(pa.string())]
    batch = pa.record_batch([pa.array(values[k], t) for k, t in zip(KINDS, types, strict=True)], KINDS)
    nullable = [True] * len(KINDS)
    making = native.Program(3)
    for k, kind in enumerate(KINDS):
        making.emit(k, making.load(0, k, kind, True, kind))
    making.finish()
    records = native.Records(KINDS, nullable)
    making.run_records([(rows, [(native.Frame.from_arrow(batch), None, 0)])], records)
    hashes = np.array([n << 40 | 5 for n in numbers], np.uint64)  # they share their low bits, and so their first place
    index, first, second = native.Index.build(hashes, False)
    assert (first, second, index.rows) == (-1, -1, rows)
    index.point_at(records)
    records.add_blank()

    program = native.Program(4)
    key = program.load(0, 0, "k", False, "hash")
    row = program.lookup(index, key, records.null_row)
    for slot, register in enumerate(program.gather(records, row, list(range(len(KINDS))))):
        program.emit(slot, register)
    program.finish()
    asked = [*numbers, rows, rows + 1, *reversed(numbers)]
    frame = native.Frame.from_arrow(pa.record_batch({"h": pa.array([n << 40 | 5 for n in asked])}))
    made, _ = program.run_frame([(len(asked), [(frame, None, 0)])], KINDS, nullable, [])
    for slot, kind in enumerate(KINDS):
        expected = [values[kind][n] if n < rows else None for n in asked]
        assert column_of(made, slot).to_pylist() == expected, kind
    assert [line for line in program.looked() if line != (0, 0)] == [(len(asked), 2)]


# ---- attention


@pytest.mark.parametrize("simd", ["", "scalar"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("dim", [1, 16, 19])
def test_an_attention_is_its_formula(dim: int, width: int, simd: str) -> None:
    random = np.random.default_rng(dim * 100 + width)

    def drawn(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    for items, rows in ((1, 1), (2, 3), (5, 4), (7, 9)):
        maps, fixed, above, below = drawn(items, dim, width), drawn(items, width), drawn(width), drawn(width)
        vectors, targets = drawn(items, dim), drawn(rows, dim)
        unit = native.HistoryAttention(maps, fixed, above, below, vectors, 0.25)
        inner = fixed[None] + np.einsum("rd,idw->riw", targets.astype(np.float64), maps)
        scores = (inner * np.where(inner > 0, above, below)).sum(axis=2) + 0.25
        expected = scores @ vectors
        assert native.attend([unit], [targets], simd) == pytest.approx(expected, rel=1e-3, abs=1e-3)
        both = native.attend([unit, unit], [targets, targets], simd)
        assert (both[:, :dim] == both[:, dim:]).all()
    empty = native.attend([unit], [drawn(0, dim)], simd)
    assert empty.shape == (0, dim)
    with pytest.raises(ValueError, match="each unit needs targets"):
        native.attend([unit], [], simd)
    with pytest.raises(ValueError, match="each unit needs targets"):
        native.attend([], [], simd)


def test_instructions_that_no_machine_has_are_named() -> None:
    with pytest.raises(ValueError, match="this machine has no abacus"):
        native.attend([], [], "abacus")
