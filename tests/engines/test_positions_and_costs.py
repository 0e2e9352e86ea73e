"""Where a stream may be taken up again, and what a plan that ran knows of its costs."""

from __future__ import annotations

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cpu.tables import Tables, build
from ctrbox.engines.plan import Position
from ctrbox.errors import DataError, PlanError
from ctrbox.plan.tables import TableSpec

ROWS = pa.table({"n": list(range(20)), "f": [k / 2 for k in range(20)]})


def compiled() -> cb.Plan:
    features = cb.FeatureSet(dense={"n": col("n"), "log": col("f").log1p()})
    return cb.compile(cb.View(ROWS, name="log"), features, device="cpu")


@pytest.mark.parametrize(
    ("start", "shuffle"),
    [(Position(-1), 0), (Position(0, -1), 0), (Position(0, 0, -1), 0), (Position(0, 4, 0), 4), (Position(0, 5, 0), 4)],
)
def test_a_position_that_no_stream_has(start: Position, shuffle: int) -> None:
    with pytest.raises(PlanError, match=f"is no position of a stream with shuffle={shuffle}"):
        next(compiled().walk(2, shuffle=shuffle, start=start))


def test_a_stream_goes_on_inside_a_window_with_the_same_shuffle_alone() -> None:
    plan = compiled()
    whole = [(b.dense[:, 0].tolist(), p) for b, p in plan.walk(2, shuffle=4, seed=3)]
    position = whole[0][1]
    assert position.skip == 2
    rest = [b.dense[:, 0].tolist() for b, _ in plan.walk(2, shuffle=4, seed=3, start=position)]
    assert rest == [rows for rows, _ in whole[1:]]
    with pytest.raises(PlanError, match="this position lies inside a shuffle window; go on with the same shuffle"):
        next(plan.walk(2, start=Position(0, 2, 0)))


def test_costs_are_known_once_a_batch_was_taken() -> None:
    plan = compiled()
    with pytest.raises(PlanError, match="nothing has run yet; take a batch first"):
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


def test_tables_that_are_not_fitted_yet_or_that_do_not_exist() -> None:
    with pytest.raises(PlanError, match=r"operators that learn from the log; call plan\.fit\(\) first"):
        Tables({}).native(TableSpec("fit", 0, "quantiles"))
    with pytest.raises(PlanError, match="no native table 'tree'"):
        build(TableSpec("tree", ()))


def test_a_request_with_vectors_of_another_length_is_refused() -> None:
    vectors = pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))
    plan = cb.compile(cb.View(pa.table({"v": vectors})), cb.FeatureSet(dense={"v": col("v")}), device="cpu")
    assert plan.run(pa.table({"v": vectors})).dense.tolist() == [[1.0, 2.0]]
    longer = pa.table({"v": pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float64(), 3))})
    with pytest.raises(DataError, match="column 'v' of the request holds lists of 3, the plan was built on 2"):
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
            DataError, match=r"id \d of view 'more' comes after \d.*not in ascending order without repeats"
        ):
            merged(ids)
