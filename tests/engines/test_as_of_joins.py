"""As-of joins equal a plain-Python search for the newest earlier row, whatever the chunks, the threads and the order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native, col
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.engines.cpu import joined_views
from ctrbox.errors import DataError, PlanError

Row = dict[str, Any]
USERS = ["a", "b", "ü"]
TIMES = st.integers(-3, 12)  # seconds


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_views, "LOAD_ROWS", 7)
        yield


def newest(versions: list[Row], user: str | None, ts: int | None) -> Row | None:
    """Return the newest version of a user at or before a time, by looking at all of them; the last of equal ones."""
    if user is None or ts is None:
        return None
    found = [
        (row["since"], place, row) for place, row in enumerate(versions) if row["user"] == user and row["since"] <= ts
    ]
    return max(found, key=lambda entry: entry[:2])[2] if found else None


def log_of(rows: list[tuple[str | None, int | None]], chunk: int = 1000) -> cb.View:
    table = pa.table(
        {
            "id": pa.array(range(len(rows)), pa.int64()),
            "user": pa.array([user for user, _ in rows], pa.string()),
            "ts": pa.array([ts for _, ts in rows], pa.timestamp("s")),
        }
    )
    return cb.View(pa.Table.from_batches(table.to_batches(max_chunksize=chunk), table.schema), key="id", name="log")


def profiles_of(versions: list[Row], **options: Any) -> cb.View:
    table = pa.table(
        {
            "user": pa.array([row["user"] for row in versions], pa.string()),
            "since": pa.array([row["since"] for row in versions], pa.timestamp("s")),
            "city": pa.array([row["city"] for row in versions], pa.string()),
            "level": pa.array([row["level"] for row in versions], pa.int64()),
        }
    )
    return cb.View(table, key="user", name="profiles", **options)


@st.composite
def profiles(draw: st.DrawFn, unique: bool = True) -> list[Row]:
    """Versions of some users, in any order."""
    by = (lambda row: (row["user"], row["since"])) if unique else None
    version = st.fixed_dictionaries(
        {
            "user": st.sampled_from(USERS),
            "since": TIMES,
            "city": st.sampled_from(["x", "zürich", "", None]),
            "level": st.none() | st.integers(0, 9),
        }
    )
    return draw(st.lists(version, max_size=30, unique_by=by))


LOGS = st.lists(st.tuples(st.sampled_from([*USERS, "other", None]), st.none() | TIMES), max_size=40)


@settings(max_examples=40, deadline=None)
@given(versions=profiles(), rows=LOGS, chunk=st.integers(1, 50), how=st.sampled_from(["left", "inner"]))
def test_each_row_takes_the_newest_row_of_its_key_at_or_before_its_time(
    versions: list[Row], rows: list[tuple[str | None, int | None]], chunk: int, how: str
) -> None:
    joined = log_of(rows, chunk).join(profiles_of(versions), on="user", how=how, as_of=("ts", "since"))
    found = cb.compute({name: col(name) for name in ("id", "city", "level")}, joined).to_pylist()
    expected = []
    for number, (user, ts) in enumerate(rows):
        row = newest(versions, user, ts)
        if row is not None or how == "left":
            expected.append({"id": number, "city": row and row["city"], "level": row and row["level"]})
    assert found == expected


@settings(max_examples=20, deadline=None)
@given(versions=profiles(unique=False), rows=LOGS)
def test_of_rows_with_the_same_key_and_time_the_last_one_wins_if_the_view_says_so(
    versions: list[Row], rows: list[tuple[str | None, int | None]]
) -> None:
    joined = log_of(rows).join(profiles_of(versions, keep="last"), on="user", as_of=("ts", "since"))
    found = cb.compute({"city": col("city"), "level": col("level")}, joined).to_pylist()
    expected = [newest(versions, user, ts) for user, ts in rows]
    assert found == [{"city": row and row["city"], "level": row and row["level"]} for row in expected]


@settings(max_examples=20, deadline=None)
@given(versions=profiles(), later=profiles(), rows=LOGS, moment=TIMES)
def test_later_rows_of_the_view_change_nothing_in_earlier_rows_of_the_log(
    versions: list[Row], later: list[Row], rows: list[tuple[str | None, int | None]], moment: int
) -> None:
    before = [row for row in versions if row["since"] <= moment]
    after = [row for row in later if row["since"] > moment]
    early = [(user, ts) for user, ts in rows if ts is None or ts <= moment]

    def cities(known: list[Row]) -> list[Any]:
        joined = log_of(early).join(profiles_of(known), on="user", as_of=("ts", "since"))
        return cb.compute({"city": col("city"), "level": col("level")}, joined).to_pylist()

    assert cities(before) == cities([*after, *before])


@settings(max_examples=25, deadline=None)
@given(keys=st.lists(st.tuples(st.integers(0, 5), st.integers(-4, 4)), max_size=60), keep_last=st.booleans())
def test_the_index_names_two_rows_of_the_same_key_and_time(keys: list[tuple[int, int]], keep_last: bool) -> None:
    hashes = np.array([key for key, _ in keys], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    times = np.array([time for _, time in keys], np.int64)
    told = set()
    for threads in (1, 2, 5):
        index, first, second = _native.AsOfIndex.build(hashes, times, keep_last, threads)
        told.add((first, second))
        assert (index.keys, index.rows) == (len({key for key, _ in keys}), len(set(keys)))
    ((first, second),) = told
    assert (first >= 0) == (len(set(keys)) < len(keys) and not keep_last)
    if first >= 0:
        assert first < second
        assert keys[first] == keys[second]


def shop(tmp_path: Path, count: int = 3_000) -> tuple[Path, Path]:
    """Write a log and prices that change, of which later ones come first."""
    rng = np.random.default_rng(7)
    ads = rng.integers(0, 40, count)
    log = pa.table(
        {
            "ad": ads,
            "ts": pa.array(np.sort(rng.integers(0, 10_000, count)), pa.timestamp("ms")),
            "clicked": rng.integers(0, 2, count),
        }
    )
    prices = pa.table(
        {
            "ad": np.repeat(np.arange(30), 9),
            "ts": pa.array(np.tile(np.arange(9_000, 0, -1_000), 30), pa.timestamp("ms")),
            "price": rng.integers(1, 100, 270),
        }
    )
    pq.write_table(log, tmp_path / "log.parquet", row_group_size=500)
    pq.write_table(prices, tmp_path / "prices.parquet", row_group_size=50)
    return tmp_path / "log.parquet", tmp_path / "prices.parquet"


def plan_of(log: Any, prices: Any, **options: Any) -> cb.Plan:
    priced = cb.View(prices, key="ad", name="prices").fill(price=-1)
    view = cb.View(log, name="log").join(priced, on="ad", as_of="ts")
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={"ad": col("ad").key(), "at": cb.cross("ad", "price")},
        dense={"price": col("price")},
    )
    return cb.compile(view, features, device="cpu", **options)


def rows_of(batches: Any) -> list[Any]:
    return [(b.sparse["at"][row].tolist(), b.dense[row].tolist()) for b in batches for row in range(b.rows)]


def test_batches_are_the_same_for_any_size_threads_and_position(tmp_path: Path) -> None:
    log, prices = shop(tmp_path)
    whole = rows_of(plan_of(log, prices, threads=1, chunk_rows=64).batches(3_000))
    assert len({price for _, (price,) in whole}) > 50
    stream = plan_of(log, prices, threads=2).batches(173)
    first = [next(stream), next(stream)]
    position = stream.position
    stream.close()
    assert rows_of(first) + rows_of(plan_of(log, prices, threads=2).batches(91, start=position)) == whole


def test_a_saved_plan_joins_as_of_the_same_times_and_the_times_are_part_of_its_fingerprint(tmp_path: Path) -> None:
    log, prices = shop(tmp_path)
    plan = plan_of(log, prices)
    plan.save(tmp_path / "plan.ctrplan")
    loaded = cb.Plan.load(tmp_path / "plan.ctrplan", allow_views=[str(tmp_path)])
    assert loaded.fingerprint == plan.fingerprint
    assert rows_of(loaded.batches(500)) == rows_of(plan.batches(500))
    once = pq.read_table(prices).slice(0, 1)
    plain = cb.View(log, name="log").join(
        cb.View(once, key="ad", name="prices").select("price").fill(price=-1), on="ad"
    )
    assert cb.compile(plain, plan.features, device="cpu").fingerprint != plan.fingerprint


def test_a_request_is_joined_as_of_its_own_time(tmp_path: Path) -> None:
    plan = plan_of(*shop(tmp_path))
    assert plan.request_schema().names == ["ad", "ts"]
    prices = sorted(pq.read_table(tmp_path / "prices.parquet").to_pylist(), key=lambda row: row["ts"])
    mine = [row for row in prices if row["ad"] == 4]
    for at, row in enumerate(mine):
        for ts, expected in ((row["ts"], row["price"]), (row["ts"].replace(microsecond=999), row["price"])):
            assert plan.run([{"ad": 4, "ts": ts.isoformat()}]).dense.tolist() == [[expected]], at
    assert plan.run([{"ad": 4, "ts": "1969-12-31T00:00:00Z"}]).dense.tolist() == [[-1]]
    assert plan.run([{"ad": 4, "ts": "2026-01-01T00:00:00Z"}]).dense.tolist() == [[mine[-1]["price"]]]
    with pytest.raises(DataError, match=r"lacks.*ts"):
        plan.run([{"ad": 4}])


@pytest.mark.parametrize("context", [["ts"], ["ad"], ["ad", "ts"], []])
def test_a_request_whose_context_has_the_time_or_the_key_gives_the_same_features(
    tmp_path: Path, context: list[str]
) -> None:
    plan = plan_of(*shop(tmp_path))
    split = Split(plan, context)
    rows = pa.RecordBatch.from_pydict(
        {
            "ad": pa.array([3] * 9 if "ad" in context else range(0, 36, 4)),
            "ts": pa.array([5_500_000] * 9, pa.timestamp("us")),
        }
    )
    part = split.context(rows.slice(0, 1).select(split.context_schema.names))
    found = split.joined(part, split.candidates(part.frame, rows.select(split.candidate_schema.names)))
    expected = plan.run(rows)
    assert found.dense.tolist() == expected.dense.tolist()
    assert [r.tolist() for r in found.sparse["at"]] == [r.tolist() for r in expected.sparse["at"]]


def test_keys_without_an_earlier_row_are_counted_and_warned_of() -> None:
    versions = [{"user": "a", "since": 5, "city": "x", "level": 1}]
    log = log_of([("a", 4), ("a", 5), ("b", 9), (None, 9), ("a", None)])
    plan = cb.compile(
        log.join(profiles_of(versions).fill(city=""), on="user", as_of=("ts", "since")),
        cb.FeatureSet(sparse={"city": col("city")}),
        device="cpu",
    )
    list(plan.batches(10))
    (join,) = plan.joins
    assert (join.view, join.on, join.keys, join.missed) == ("profiles", ("user",), 3, 2)
    early = cb.compile(
        log_of([("a", 4)]).join(profiles_of(versions).fill(city=""), on="user", as_of=("ts", "since")),
        cb.FeatureSet(sparse={"city": col("city")}),
        device="cpu",
    )
    with pytest.warns(
        UserWarning, match=r"has a row in view 'profiles' at or before its own time.*\. Also compare their times"
    ):
        list(early.batches(10))


def test_the_time_of_the_view_comes_along_unless_the_rows_have_that_name() -> None:
    versions = [{"user": "a", "since": 5, "city": "x", "level": 1}]
    log = log_of([("a", 7)])
    assert log.join(profiles_of(versions), on="user", as_of=("ts", "since")).schema.names == [
        "id", "user", "ts", "since", "city", "level",
    ]  # fmt: skip
    same = profiles_of(versions).with_columns(ts=col("since")).select("ts", "city")
    assert log.join(same, on="user", as_of="ts").schema.names == ["id", "user", "ts", "city"]
    assert log.join(same, on="user", as_of="ts", prefix="p_").schema.names == ["id", "user", "ts", "p_ts", "p_city"]
    hidden = profiles_of(versions).select("city")
    assert log.join(hidden, on="user", as_of=("ts", "since")).head()["city"].to_pylist() == ["x"]


def test_times_of_other_units_and_zones_are_compared_as_moments() -> None:
    log = pa.table(
        {"user": ["a"] * 3, "ts": pa.array([3_600_000, 3_599_999, 3_600_001], pa.timestamp("ms", "Asia/Tokyo"))}
    )
    versions = pa.table({"user": ["a"], "ts": pa.array([3_600_000_000_000], pa.timestamp("ns")), "city": ["x"]})
    joined = cb.View(log, name="log").join(cb.View(versions, key="user", name="profiles"), on="user", as_of="ts")
    assert cb.compute({"city": col("city")}, joined)["city"].to_pylist() == ["x", None, "x"]


def test_one_view_can_be_joined_as_of_two_times() -> None:
    versions = [{"user": "a", "since": since, "city": str(since), "level": since} for since in (1, 5)]
    people = profiles_of(versions)
    log = log_of([("a", 6), ("a", 2)]).with_columns(start=cb.lit(0).cast("time", unit="s"))
    both = log.join(people, on="user", as_of=("ts", "since"), prefix="now_").join(
        people, on="user", as_of=("start", "since"), prefix="then_"
    )
    assert both.head().select(["now_city", "then_city"]).to_pylist() == [
        {"now_city": "5", "then_city": None},
        {"now_city": "1", "then_city": None},
    ]


def test_two_rows_of_one_key_and_time_are_an_error_that_names_them() -> None:
    versions = [{"user": user, "since": 3, "city": "x", "level": 1} for user in ("a", "b", "a")]
    joined = log_of([("a", 7)]).join(profiles_of(versions), on="user", as_of=("ts", "since"))
    with pytest.raises(
        DataError,
        match=r"view 'profiles' has key user='a' more than once with the same time in 'since' \(.*row 0.*row 2\); "
        r"make the keys unique, "
        r"or keep only the last row of each key: View\(…, keep='last'\)",
    ):
        cb.compute({"city": col("city")}, joined)


def test_a_null_time_of_the_view_is_an_error_that_names_its_row() -> None:
    versions = [{"user": "a", "since": since, "city": "x", "level": 1} for since in (1, None)]
    view = profiles_of(versions)
    joined = log_of([("a", 7)]).join(view, on="user", as_of=("ts", "since"))
    with pytest.raises(
        DataError, match=r"time 'since' of view 'profiles' is null at .*row 1; filter those rows: .filter"
    ):
        cb.compute({"city": col("city")}, joined)
    kept = log_of([("a", 7)]).join(view.filter(~col("since").is_null()), on="user", as_of=("ts", "since"))
    assert cb.compute({"city": col("city")}, kept)["city"].to_pylist() == ["x"]


@pytest.mark.parametrize(
    ("as_of", "told"),
    [
        ("since", "column 'since' is not in view 'log'"),
        ("ts", "column 'ts' is not in view 'profiles'"),
        (("ts", "level"), r"as_of: 'level' of view 'profiles' is int, expected a time; .*unit='s'"),
        (
            ("user", "since"),
            r"as_of: 'user' of view 'log' is str, expected a time; cast it first: .cast\(user='time'\)",
        ),
        (("ts", "since", "city"), "as_of takes a time column, or two"),
        ((), "as_of takes a time column, or two"),
        (3, "as_of takes the names of columns, got 3"),
        (("ts", "user"), "as_of: the time 'user' is also in the key"),
    ],
)
def test_times_that_cannot_be_joined_by_are_refused_with_a_reason(as_of: Any, told: str) -> None:
    versions = [{"user": "a", "since": 5, "city": "x", "level": 1}]
    with pytest.raises(PlanError, match=told):
        cb.compute({"city": col("city")}, log_of([("a", 7)]).join(profiles_of(versions), on="user", as_of=as_of))


def test_an_explained_plan_says_what_is_joined_as_of_which_time(tmp_path: Path) -> None:
    plan = plan_of(*shop(tmp_path))
    assert "row of prices(" in plan.explain()
    assert " as of " in plan.explain()
