"""Joined views of a plan that are read again: which files they have, which views are read with them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.compiled_plan.refreshed_views import JoinedViews, files_if_there, files_of
from ctrbox.errors import CtrboxError, SourceError

TABLES = {
    "brands": pa.table({"brand": [1, 2], "country": [5, 6]}),
    "ads": pa.table({"ad": [1, 2, 3], "brand": [1, 2, 2]}),
    "users": pa.table({"user": [1], "age": [30]}),
    "log": pa.table({"id": [1, 2], "ad": [1, 2], "user": [1, 1]}),
}


def write(folder: Path, name: str, table: pa.Table) -> None:
    pq.write_table(table, folder / f".{name}")
    (folder / f".{name}").rename(folder / f"{name}.parquet")


@pytest.fixture
def views(tmp_path: Path) -> JoinedViews:
    for name, table in TABLES.items():
        write(tmp_path, name, table)
    brands = cb.View(tmp_path / "brands.parquet", key="brand", name="brands").fill(country=0)
    ads = cb.View(tmp_path / "ads.parquet", key="ad", name="ads").fill(brand=0).join(brands, on="brand")
    users = cb.View(TABLES["users"], key="user", name="users").fill(age=0)
    log = cb.View(tmp_path / "log.parquet", key="id", name="log").join(ads, on="ad").join(users, on="user")
    features = cb.FeatureSet(dense={"country": "country", "age": "age"})
    return JoinedViews(cb.compile(log, features, device="cpu", threads=1))


def answers(views: JoinedViews) -> list[list[float]]:
    found: list[list[float]] = views.plan.run([{"id": 1, "ad": k, "user": 1} for k in (1, 2, 3, 4)]).dense.tolist()
    return found


def refused(call: Any) -> str:
    with pytest.raises(CtrboxError) as met:
        call()
    return f"{type(met.value).__name__}: {met.value}"


def test_the_views_of_a_plan_are_named_and_counted(views: JoinedViews, tmp_path: Path) -> None:
    assert sorted(views.names) == ["ads", "brands", "users"]
    assert sorted(views.refreshable) == ["ads", "brands"]
    assert {name: views.rows(name) for name in views.names} == {"ads": 3, "brands": 2, "users": 1}
    assert {name: (one.number, one.rows, bool(one.digest)) for name, one in views.loaded.items()} == {
        "ads": (1, 3, True),
        "brands": (1, 2, True),
        "users": (1, 1, False),
    }
    found = views.found("ads")
    assert (found.files, found.bytes) == (1, (tmp_path / "ads.parquet").stat().st_size)
    assert found.digest == views.loaded["ads"].digest == views.found("ads").digest
    write(tmp_path, "ads", TABLES["ads"].slice(0, 2))
    assert views.found("ads").digest != found.digest
    assert refused(lambda: views.found("users")) == (
        "SourceError: view 'users' has no files, so it cannot be read again; only views of files can be refreshed"
    )
    assert files_of(views.frames, "users") is None
    (tmp_path / "ads.parquet").unlink()
    assert files_if_there(views.frames, "ads") is None
    with pytest.raises(SourceError):
        files_of(views.frames, "ads")


def test_a_view_takes_along_those_that_join_it(views: JoinedViews) -> None:
    assert views.below(["brands"]) == [name for name in views.names if name in ("ads", "brands")]
    assert views.below(["ads"]) == ["ads"]
    assert views.below(["users"]) == ["users"]
    assert views.below([]) == []


def test_the_new_rows_are_in_other_views_and_the_old_ones_stay(views: JoinedViews, tmp_path: Path) -> None:
    old = [[5, 30], [6, 30], [6, 30], [0, 30]]
    assert answers(views) == old
    write(tmp_path, "brands", pa.table({"brand": [2], "country": [7]}))
    after = views.refreshed(["brands"])
    assert (answers(after), answers(views)) == ([[0, 30], [7, 30], [7, 30], [0, 30]], old)
    assert {name: one.number for name, one in after.loaded.items()} == {"ads": 2, "brands": 2, "users": 1}
    assert after.rows("brands") == after.loaded["brands"].rows == 1
    assert all(0 <= one.seconds < 60 for one in after.loaded.values())
    assert after.loaded["users"] is views.loaded["users"]
    assert after.loaded["brands"].digest == after.found("brands").digest != views.loaded["brands"].digest
    write(tmp_path, "ads", pa.table({"ad": [4], "brand": [2]}))
    last = after.refreshed(["ads"], {"ads": 9})
    assert answers(last) == [[0, 30], [0, 30], [0, 30], [7, 30]]
    assert {name: one.number for name, one in last.loaded.items()} == {"ads": 9, "brands": 2, "users": 1}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            TABLES["brands"].slice(0, 0),
            "DataError: view 'brands' is empty now, but had 2 rows before, so the server keeps the old rows; write at least one "
            "row, or restart the server if the view must be empty",
        ),
        (pa.table({"brand": [1, 1], "country": [5, 6]}), "DataError: view 'brands' has key brand=1 more than once "),
        (
            pa.table({"brand": [1], "country": ["x"]}),
            "PlanError: column 'country' of view 'brands' is str in FILE, but the plan was built on int",
        ),
        (
            pa.table({"brand": [1]}),
            "DataError: FILE lacks column 'country'; the plan reads it from view 'brands'",
        ),
        (pa.table({"brand": [1, 2], "country": [5, None]}), "DataError: "),
    ],
)
def test_data_that_do_not_fit_are_refused_and_the_old_rows_stay(
    views: JoinedViews, tmp_path: Path, table: pa.Table, told: str
) -> None:
    write(tmp_path, "brands", table)
    expected = told.replace("FILE", f"{tmp_path}/brands.parquet")
    assert refused(lambda: views.refreshed(["brands"])).startswith(expected)
    assert answers(views) == [[5, 30], [6, 30], [6, 30], [0, 30]]
    assert views.loaded["brands"].number == 1


def test_a_view_that_was_empty_may_stay_so(tmp_path: Path) -> None:
    write(tmp_path, "users", TABLES["users"].slice(0, 0))
    users = cb.View(tmp_path / "users.parquet", key="user", name="users").fill(age=0)
    log = cb.View(TABLES["log"], key="id", name="log").join(users, on="user")
    views = JoinedViews(cb.compile(log, cb.FeatureSet(dense={"age": "age"}), device="cpu", threads=1))
    write(tmp_path, "users", TABLES["users"].slice(0, 0))
    after = views.refreshed(["users"])
    assert (after.rows("users"), after.loaded["users"].number) == (0, 2)
    write(tmp_path, "users", TABLES["users"])
    assert after.refreshed(["users"]).rows("users") == 1


def test_files_that_changed_after_a_plan_was_used_are_read_again(views: JoinedViews, tmp_path: Path) -> None:
    for again in (JoinedViews(views.plan), JoinedViews(views.plan.using(device="cpu"))):
        assert all(again.loaded[name].digest == views.loaded[name].digest for name in views.names)
    write(tmp_path, "brands", pa.table({"brand": [1, 2], "country": [7, 8]}))
    late = JoinedViews(views.plan)
    assert answers(late)[0][0] == 5.0
    assert late.loaded["ads"].digest == late.found("ads").digest
    assert late.loaded["brands"].digest != late.found("brands").digest
    fresh = late.refreshed(["brands"])
    assert answers(fresh)[0][0] == 7.0
    assert fresh.loaded["brands"].digest == fresh.found("brands").digest
