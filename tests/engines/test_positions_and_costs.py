"""Where a stream may be taken up again, and what a plan that ran knows of its costs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.batch_stream import Position
from ctrbox.engines.cpu.operator_tables import Tables, build
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.language.tables_of_operators import TableSpec

ROWS = pa.table({"n": list(range(20)), "f": [k / 2 for k in range(20)]})


def compiled() -> cb.Plan:
    features = cb.FeatureSet(dense={"n": col("n"), "log": col("f").log1p()})
    return cb.compile(cb.View(ROWS, name="log"), features, device="cpu")


@pytest.mark.parametrize(
    ("start", "shuffle"),
    [(Position(0, 4, 0), 4), (Position(0, 5, 0), 4)],
)
def test_a_position_that_no_stream_has(start: Position, shuffle: int) -> None:
    with pytest.raises(PlanError, match=f"is not a position in a stream with shuffle={shuffle}"):
        next(compiled().batches(2, shuffle=shuffle, start=start).positioned())


@pytest.mark.parametrize(("shuffle", "seed"), [(4, 2), (8, 3), (0, 3), (0, 0)])
def test_a_position_of_a_shuffled_stream_belongs_to_its_settings(shuffle: int, seed: int) -> None:
    with pytest.raises(
        PlanError, match=r"belongs to a stream with shuffle=4, seed=3; continue with these values, not with"
    ):
        compiled().batches(2, shuffle=shuffle, seed=seed, start=Position(4, 0, 1, 4, 3)).positioned()


def test_what_is_no_position_is_refused() -> None:
    start: Any = 4
    with pytest.raises(
        PlanError, match=r"start must be a Position, such as that of a stream of plan\.batches\(…\), got 4"
    ):
        compiled().batches(2, start=start).positioned()


def test_a_stream_goes_on_inside_a_window_with_the_same_shuffle_alone() -> None:
    plan = compiled()
    whole = [(b.dense[:, 0].tolist(), p) for b, p in plan.batches(2, shuffle=4, seed=3).positioned()]
    position = whole[0][1]
    assert position.skip == 2
    rest = [b.dense[:, 0].tolist() for b, _ in plan.batches(2, shuffle=4, seed=3, start=position).positioned()]
    assert rest == [rows for rows, _ in whole[1:]]
    with pytest.raises(
        PlanError,
        match="the position lies inside a shuffle window, so it needs the shuffle= and "
        "seed= of the stream from which it comes",
    ):
        next(plan.batches(2, start=Position(0, 2, 0)).positioned())


def test_costs_are_known_once_a_batch_was_taken() -> None:
    plan = compiled()
    with pytest.raises(
        PlanError, match="this plan has not run yet, so there are no measured times; read a batch first"
    ):
        plan.measure()
    list(plan.batches(8))
    found = plan.measure()
    assert list(found) == ["cpu"]
    wanted: dict[str, float] = {}
    for program in plan.extractor().programs:
        for node, (_, nanos, _) in zip(program.nodes, program.native.profile(), strict=True):
            wanted[str(node)] = wanted.get(str(node), 0.0) + nanos / len(ROWS)
    assert found["cpu"] == {name: cost for name, cost in wanted.items() if cost}
    assert len(found["cpu"]) >= 2
    assert plan.measured == found
    seconds: dict[str, float] = {}
    for program in plan.extractor().programs:
        for label, (_, nanos, _) in zip(program.labels, program.native.profile(), strict=True):
            seconds[label] = seconds.get(label, 0.0) + nanos / 1e9
    assert plan.profile() == seconds
    assert max(seconds.values()) > 0
    assert list(plan.profile().values()) == sorted(seconds.values(), reverse=True)


def test_tables_that_are_not_fitted_yet_or_that_do_not_exist() -> None:
    with pytest.raises(
        PlanError, match=r"operators that are fitted on the log, such as quantiles, but was not fitted yet"
    ):
        Tables({}).native(TableSpec("fit", 0, "quantiles"))
    with pytest.raises(PlanError, match="no native table 'tree'"):
        build(TableSpec("tree", ()))


def test_a_request_with_vectors_of_another_length_is_refused() -> None:
    vectors = pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))
    plan = cb.compile(cb.View(pa.table({"v": vectors})), cb.FeatureSet(dense={"v": col("v")}), device="cpu")
    assert plan.run(pa.table({"v": vectors})).dense.tolist() == [[1.0, 2.0]]
    longer = pa.table({"v": pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float64(), 3))})
    with pytest.raises(
        DataError, match="column 'v' of the request holds lists of 3 values, but the plan was built on lists of 2"
    ):
        plan.run(longer)


def test_ids_of_a_merged_view_ascend_from_one_morsel_to_the_next() -> None:
    def merged(ids: list[int]) -> list[float]:
        more = pa.Table.from_batches([pa.record_batch({"id": [i], "x": [float(i)]}) for i in ids])
        log = cb.View(pa.table({"id": [1, 2, 3]}), key="id", name="log")
        view = log.merge(cb.View(more, key="id", name="more").fill(x=0.0), ordered=True)
        (batch,) = cb.compile(view, cb.FeatureSet(dense={"x": col("x")}), device="cpu").batches(8)
        found: list[float] = batch.dense[:, 0].tolist()
        return found

    assert merged([1, 2, 3]) == [1.0, 2.0, 3.0]
    assert merged([1, 3]) == [1.0, 0.0, 3.0]  # an id without a row
    assert merged([1, 3, 4, 5]) == [1.0, 0.0, 3.0]
    for ids in ([2, 1, 3], [1, 1, 3], [1, 3, 2], [1, 3, 4, 5, 2]):  # behind the log's last id too
        with pytest.raises(
            DataError, match=r"id \d of view 'more' comes after \d.*; expected ids in ascending order without repeats:"
        ):
            merged(ids)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("batch_size", 1, 2**31 - 1),
        ("shuffle", 0, 2**31 - 1),
        ("seed", 0, 2**64 - 1),
        ("limit", 0, 2**62),
        ("stop", 0, 2**62),
    ],
)
def test_settings_of_a_stream_have_bounds(name: str, low: int, high: int) -> None:
    plan = compiled()
    for value in (low - 1, high + 1, True, 1.0, "1"):
        with pytest.raises(PlanError, match=f"^{name} must be a whole number from {low:,} to {high:,}, got {value!r}$"):
            plan.batches(**{name: value}).positioned()  # type: ignore[arg-type]
    for value in (low, high):
        plan.batches(**({"batch_size": 1} | {name: value})).positioned().close()


@pytest.mark.parametrize(("part", "of", "name"), [(0, 0, "of"), (0, 4097, "of"), (-1, 3, "part"), (3, 3, "part")])
def test_a_part_is_one_of_at_most_4096(part: int, of: int, name: str) -> None:
    with pytest.raises(PlanError, match=f"^{name} must be a whole number from"):
        next(compiled().parts(4, part, of))


@pytest.mark.parametrize("shuffle", [0, 8])
def test_parts_are_the_batches_cut_at_the_same_places(shuffle: int) -> None:
    whole = [b.dense[:, 0].tolist() for b, _ in compiled().batches(8, shuffle=shuffle).positioned()]
    assert [len(rows) for rows in whole] == [8, 8, 4]
    for part in range(3):
        found = list(compiled().parts(8, part, 3, shuffle=shuffle))
        assert [rows for _, _, rows in found] == [8, 8, 4]
        cut = [rows[len(rows) * part // 3 : len(rows) * (part + 1) // 3] for rows in whole]
        assert [b.dense[:, 0].tolist() for b, _, _ in found] == cut
    assert [b.dense[:, 0].tolist() for b, _, _ in compiled().parts(8, 0, 1, shuffle=shuffle)] == whole


def test_a_window_must_hold_a_batch() -> None:
    plan = compiled()
    with pytest.raises(
        PlanError, match="shuffle=7 is a window smaller than a batch; it must have at least batch_size=8 rows"
    ):
        plan.batches(8, shuffle=7).positioned()
    assert [b.rows for b, _ in plan.batches(8, shuffle=8).positioned()] == [8, 8, 4]
    assert [b.rows for b, _ in plan.batches(8, shuffle=15).positioned()] == [8, 8, 4]
    # A window of 17 rows is one of two whole batches: rows of both are mixed.
    assert {int(n) // 16 for b, _ in list(plan.batches(8, shuffle=17).positioned())[:2] for n in b.dense[:, 0]} == {0}


@pytest.mark.parametrize("limit", [0, 1, 7, 8, 9, 16, 19, 20, 21])
@pytest.mark.parametrize("shuffle", [0, 8])
def test_a_limit_cuts_the_stream_at_its_row(limit: int, shuffle: int) -> None:
    whole = [n for b, _ in compiled().batches(8, shuffle=shuffle).positioned() for n in b.dense[:, 0].tolist()]
    found = [b.dense[:, 0].tolist() for b, _ in compiled().batches(8, shuffle=shuffle, limit=limit).positioned()]
    assert [n for rows in found for n in rows] == whole[:limit]
    assert all(found)


@pytest.mark.parametrize("seen", [1, 2, 3, 4])
def test_positions_of_a_shuffled_stream_name_window_and_row(seen: int) -> None:
    places = [p for _, p in compiled().batches(4, shuffle=8, seed=5).positioned()]
    expected = [(0, 4, 0), (8, 0, 1), (8, 4, 1), (16, 0, 2), (20, 0, 3)]
    assert [(p.row, p.skip, p.window) for p in places] == expected
    whole = [b.dense[:, 0].tolist() for b, _ in compiled().batches(4, shuffle=8, seed=5).positioned()]
    rest = [
        b.dense[:, 0].tolist() for b, _ in compiled().batches(4, shuffle=8, seed=5, start=places[seen - 1]).positioned()
    ]
    assert rest == whole[seen:]
    with pytest.raises(
        PlanError, match=r"to a stream with shuffle=8, seed=5; continue with these values, not with shuffle=8, seed=6"
    ):
        compiled().batches(4, shuffle=8, seed=6, start=places[0]).positioned()


def test_a_position_inside_a_window_belongs_to_a_batch_size() -> None:
    plan = cb.compile(cb.View(pa.table({"n": list(range(40))})), cb.FeatureSet(dense={"n": col("n")}), device="cpu")
    stream = plan.batches(6, shuffle=20, seed=1)
    seen = [row for _ in range(2) for row in next(stream).dense[:, 0].tolist()]
    with pytest.raises(
        PlanError, match="inside a shuffle window of 18 rows, but with batch_size=10 a window has 20 rows"
    ):
        plan.batches(10, shuffle=20, seed=1, start=stream.position)
    # Batches of 3 have windows of 18 rows, too.
    for batch in plan.batches(3, shuffle=20, seed=1, start=stream.position):
        seen += batch.dense[:, 0].tolist()
    assert sorted(seen) == list(range(40))
    old = Position(0, 12, 0, 20, 1)  # of a checkpoint without the rows of a window
    assert sum(batch.rows for batch in plan.batches(6, shuffle=20, seed=1, start=old)) == 28
