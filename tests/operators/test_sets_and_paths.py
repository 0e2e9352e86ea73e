"""Tables that operators are given: paths of JSON and their refusals, word by word, and sets, boundaries and histories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox import _native

native: Any = _native


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("$", ""),
        ("$.", "a name was expected (other keys: ['the key']) at position 2"),
        ("$.a.*", "'*' is not supported at position 4"),
        ("$. a", "a name was expected (other keys: ['the key']) at position 2"),
        ("$.azAZ09_-é", ""),
        *((f"$.a{c}", "'.' or '[' was expected at position 3") for c in "@`{/:^"),
        ("$.a[", "an index or a quoted key was expected at position 4"),
        ("$.a[]", "an index or a quoted key was expected at position 4"),
        ("$[x]", "an index or a quoted key was expected at position 2"),
        ("$[0]", ""),
        ("$[2147483647]", ""),
        ("$.a[99999999999999999999]", "the index is too large at position 4"),
        ("$[0 ]", "']' was expected at position 3"),
        ("$['", "the quote is not closed at position 3"),
        ("$['a'", "']' was expected at position 5"),
        ("$['a']", ""),
        ('$["it\'s"]', ""),
        ("$['']", ""),
        ("$['it\\'s \\\\']", ""),
        ("$['\\n']", "only the quote and the backslash can be escaped at position 4"),
        ("$['\\\"']", "only the quote and the backslash can be escaped at position 4"),
        ("$['\\", "only the quote and the backslash can be escaped at position 4"),
        ("$['a'].b[3]['c']", ""),
        ("$" + ".a" * 65, "the path has more than 64 levels at position 131"),
    ],
)
def test_a_path_is_read_or_refused_at_the_place_of_the_mistake(path: str, sentence: str) -> None:
    if sentence:
        with pytest.raises(ValueError) as told:
            native.JsonPaths([path], ["i"])
        assert str(told.value) == f"JSON path '{path}': {sentence}"
    else:
        assert native.JsonPaths([path], ["i"]).bytes > 0


def test_paths_have_kinds_and_are_one_to_32() -> None:
    for kind in ("s", "i", "f", "b", "*s", "*i", "*f"):
        native.JsonPaths(["$"], [kind])
    for kind in ("", "t", "k", "*b", "*"):
        with pytest.raises(ValueError) as told:
            native.JsonPaths(["$.a"], [kind])
        assert str(told.value) == f"JSON path '$.a': no result of kind '{kind}'; there are s, i, f, b, *s, *i, *f"
    native.JsonPaths(["$.a"] * 32, ["i"] * 32)
    for count in (0, 33):
        with pytest.raises(ValueError) as told:
            native.JsonPaths(["$.a"] * count, ["i"] * count)
        assert str(told.value) == f"JSON: {count} paths; from 1 to 32 are possible"
    for kinds in ([], ["i", "i"]):
        with pytest.raises(ValueError, match="JSON: expected one kind for each path"):
            native.JsonPaths(["$.a"], kinds)


def run(operator: str, args: str, values: pa.Array, table: Any, result: str = "b", **more: Any) -> list[Any]:
    """The results of an operator of one argument, which it may take from a table."""
    frame = native.Frame.from_arrow(pa.record_batch({"x": values}))
    program = native.Program(64)
    at = program.load(0, 0, args, False, "x")
    ints, nullable = more.get("ints", []), more.get("nullable", False)
    program.emit(0, program.call(operator, args, [at], [result], [nullable], ints, [], [], table, False)[0])
    program.finish()
    kept, _ = program.run_frame([(len(values), [(frame, None, 0)])], [result], [nullable], [frame])
    return list(kept.export(0)[2][0].tolist())


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("start", [-50, 0, 1, 10**15])
def test_a_set_has_its_members_however_many(count: int, start: int) -> None:
    members = [start + 3 * k for k in range(count)]
    asked = [start + k for k in range(-3, 3 * count + 4)]
    expected = [int(k in set(members)) for k in asked]
    assert run("is_in", "i", pa.array(asked, pa.int64()), native.IntSet(members[::-1] + members)) == expected
    floats = [k / 2 for k in members] + [float("nan")]
    asked_floats = [*(k / 2 for k in asked), float("nan"), -0.0]
    expected_floats = [*expected, 0, int(0 in members)]
    assert run("is_in", "f", pa.array(asked_floats), native.FloatSet(floats)) == expected_floats
    words = [f"w{k}".encode() for k in members]
    asked_words = [*(f"w{k}" for k in asked), "", "w"]
    table = native.StrSet([*words, *words])
    assert run("is_in", "s", pa.array(asked_words), table) == [*expected, 0, 0]


def test_boundaries_rise_and_are_numbers() -> None:
    table = native.Boundaries([-1.0, 0.0, 0.0, 2.5])
    values = [-2.0, -1.0, -0.5, 0.0, 1.0, 2.5, 3.0]
    assert run("bucketize", "f", pa.array(values), table, "i") == [0, 1, 1, 3, 3, 4, 4]
    assert run("bucketize", "f", pa.array(values), native.Boundaries([]), "i") == [0] * 7
    for wrong, sentence in (
        ([0.0, float("nan")], "bucketize: boundary 1 is NaN"),
        ([float("nan")], "bucketize: boundary 0 is NaN"),
        ([0.0, 1.0, 0.5],
         "bucketize: boundary 2 (0.500000) is below the one before it; boundaries must ascend"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as told:
            native.Boundaries(wrong)
        assert str(told.value) == sentence


def test_tables_have_columns_of_equal_length_in_order() -> None:
    hashes, none = np.array([5, 9], np.uint64), np.zeros(0, np.int64)
    numbers = np.array([1, 2])
    for ids, vectors, width in ((numbers[:1], np.zeros(0), 0), (none, np.zeros(3), 2), (none, np.zeros(4), 1)):
        with pytest.raises(ValueError, match="a dictionary needs one value per word"):
            native.Dictionary(hashes, ids, vectors, width)
    for columns in ((numbers[:1], numbers, numbers), (numbers, numbers[:1], numbers), (numbers, numbers, numbers[:1])):
        with pytest.raises(ValueError, match="history: the columns have different lengths"):
            native.History(hashes, *columns)
    same = np.array([5, 5], np.uint64)
    native.History(same, numbers, numbers, numbers)
    for buckets in ([2, 1], [1, 1]):
        with pytest.raises(ValueError, match="history: the buckets are out of order"):
            native.History(same, np.array(buckets), numbers, numbers)
    three = np.array([5, 9, 5], np.uint64)
    with pytest.raises(ValueError, match="history: the keys are out of order"):
        native.History(three, *[np.array([1, 2, 3])] * 3)


def test_a_look_up_takes_kernels_keys_and_times_that_fit() -> None:
    program = native.Program(8)
    number, time = program.load(0, 0, "i", False, "x"), program.literal("t", 0, 0.0, b"")
    for name, args in (("hush", "i"), ("hash", "f")):
        with pytest.raises(ValueError) as told:
            program.call(name, args, [number], ["k"], [False], [], [], [], None, False)
        assert str(told.value) == f"there is no kernel {name}({args})"
    key = program.call("hash", "i", [number], ["k"], [False], [], [], [], None, False)[0]
    index, first, second = native.AsOfIndex.build(np.array([5], np.uint64), np.array([1]), False)
    assert (index.rows, first, second) == (1, -1, -1)
    for registers in ((number, time), (key, number)):
        with pytest.raises(ValueError, match="an as-of look-up takes a key and a time"):
            program.lookup_as_of(index, *registers, 0)
    program.lookup_as_of(index, key, time, 0)
    for times in (np.array([1, 2]), np.zeros(0, np.int64)):
        with pytest.raises(ValueError, match="expected one time for each hash"):
            native.AsOfIndex.build(np.array([5], np.uint64), times, False)
