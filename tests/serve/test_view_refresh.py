"""Joined views are read again while serving: all of a view or nothing, and the old rows answer until then."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ctrbox.compiled_plan import refreshed_views
from ctrbox.compiled_plan.refreshed_views import JoinedViews
from ctrbox.engines.missed_keys import JoinCount
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.serve.memory_shared_by_workers import Board, Desk
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.served_models import ServedFfm, open_served
from ctrbox.serve.server import Server, Settings
from ctrbox.serve.view_refresh import ViewFollower, ViewRefresher
from ctrbox.serve.view_versions import joins_together
from tests.serve.running import Running, running
from tests.serve.test_scoring import body_of
from tests.serve.test_workers import get, gone, until
from tests.serve.worlds import World


@pytest.fixture
def views(world: World, tmp_path: Path) -> dict[str, str]:
    """Copies of the users and the ads, each as a folder with one file."""
    found = {}
    for name in ("users", "ads"):
        (tmp_path / name).mkdir()
        pq.write_table(pq.read_table(world.data / name), tmp_path / name / "a.parquet")
        found[name] = str(tmp_path / name)
    return found


@pytest.fixture
def served(world: World, views: dict[str, str]) -> ServedFfm:
    made = open_served(ModelFolder.open(world.folder), views=views)
    assert isinstance(made, ServedFfm)
    return made


def rewritten(folder: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the file of a view, as a careful writer does: aside, then renamed."""
    file = Path(folder) / "a.parquet"
    pq.write_table(change(pq.read_table(file)), file.with_name("_a"))
    file.with_name("_a").rename(file)


def with_(name: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Set a column to one value."""

    def change(table: pa.Table) -> pa.Table:
        field = table.schema.field(name)
        return table.set_column(table.schema.get_field_index(name), field, pa.array([value] * len(table), field.type))

    return change


def asked(world: World) -> bytes:
    return orjson.dumps(body_of(world.rows(0, 20)))


def scores(served: Any, world: World) -> list[float]:
    found: list[float] = served.score(served.reader.from_json(asked(world)))[0].tolist()
    return found


def forced(served: Any) -> ViewRefresher:
    """A refresher that was asked once and has looked."""
    made = ViewRefresher(served)
    made.ask()
    made.look()
    return made


def test_counts_of_the_same_join_are_added() -> None:
    parts = (
        [JoinCount("a", ("x",), 10, 2), JoinCount("b", ("y",), 1, 0)],
        [JoinCount("a", ("x",), 5, 1), JoinCount("a", ("z",), 3, 3)],
    )
    assert joins_together(*parts) == [
        JoinCount("a", ("x",), 15, 3),
        JoinCount("b", ("y",), 1, 0),
        JoinCount("a", ("z",), 3, 3),
    ]
    assert joins_together() == []


@pytest.mark.parametrize("changed", ["users", "ads"])
def test_scores_after_a_refresh_are_those_of_a_server_that_starts_now(
    world: World, views: dict[str, str], served: ServedFfm, changed: str
) -> None:
    before, held = scores(served, world), served.views
    rewritten(views[changed], with_("segment", 3) if changed == "users" else with_("category", "sports/golf"))
    assert scores(served, world) == before
    refresher = forced(served)
    # What is new is read in the changed view; all views were read, because a call reads all of them.
    assert (refresher.refreshed, refresher.refused) == (2, 0)
    assert served.answer(served.reader.from_json(asked(world))).views == b"users=2, ads=2"
    after = scores(served, world)
    assert after != before
    assert after == scores(open_served(ModelFolder.open(world.folder), views=views), world)
    assert {n: v.number for n, v in held.loaded.items()} == {"users": 1, "ads": 1}  # those of before are as they were


def test_contexts_stay_cached_unless_a_view_that_they_read_changes(
    world: World, views: dict[str, str], served: ServedFfm
) -> None:
    refresher = ViewRefresher(served, every=1e-9)

    def looked(at: list[float]) -> None:
        for moment in at:
            for watched in refresher.states.values():
                watched.changed_at -= moment
            refresher.look()

    scores(served, world)
    rewritten(views["ads"], with_("bid", 2.5))
    looked([0, 9])
    assert served._parts.told == b"users=1, ads=2"
    assert len(served.cache) == 1
    expected = scores(open_served(ModelFolder.open(world.folder), views=views), world)
    assert scores(served, world) == expected
    assert served.cache.counts.hits == 1
    rewritten(views["users"], with_("segment", 1))
    looked([0, 9])
    assert served._parts.told == b"users=2, ads=2"
    assert len(served.cache) == 0
    assert scores(served, world) == scores(open_served(ModelFolder.open(world.folder), views=views), world)
    assert served.cache.counts.hits == 1


def test_counts_of_joins_go_on(world: World, views: dict[str, str], served: ServedFfm) -> None:
    scores(served, world)
    before = {j.view: j.keys for j in served.joins()}
    forced(served)
    assert {j.view: j.keys for j in served.joins()} == before
    scores(served, world)
    assert {j.view: j.keys for j in served.joins()} == {name: 2 * keys for name, keys in before.items()}


def nulls(table: pa.Table) -> pa.Table:
    field = table.schema.field("user_id").with_nullable(True)
    return table.set_column(table.schema.get_field_index("user_id"), field, pa.nulls(len(table), field.type))


SPOILT: list[tuple[str, Any, str]] = [
    ("cut", lambda path: path.write_bytes(path.read_bytes()[:200]), ""),
    ("empty", lambda path: path.write_bytes(b""), ""),
    ("gone", lambda path: path.unlink(), "no data files"),
    ("a folder", lambda path: (path.unlink(), path.mkdir()), ""),
    ("no rows", lambda path: pq.write_table(pq.read_table(path).slice(0, 0), path), "is empty now"),
    ("twice", lambda path: pq.write_table(pa.concat_tables([pq.read_table(path)] * 2), path), "more than once"),
    ("without its key", lambda path: pq.write_table(pq.read_table(path).drop_columns("user_id"), path), "user_id"),
    ("without a column", lambda path: pq.write_table(pq.read_table(path).drop_columns("segment"), path), "segment"),
    ("without values", lambda path: pq.write_table(nulls(pq.read_table(path)), path), "user_id"),
    (
        "of another type",
        lambda path: pq.write_table(
            (t := pq.read_table(path)).set_column(
                t.schema.get_field_index("segment"), "segment", pc.cast(t["segment"], pa.string())
            ),
            path,
        ),
        "segment",
    ),
]


@pytest.mark.parametrize(("how", "spoil", "words"), SPOILT, ids=[how for how, _, _ in SPOILT])
def test_damaged_data_leave_the_old_rows_and_are_tried_again(
    world: World, views: dict[str, str], served: ServedFfm, how: str, spoil: Any, words: str
) -> None:
    before = scores(served, world)
    file = Path(views["users"]) / "a.parquet"
    good = file.read_bytes()
    spoil(file)
    began = time.time()
    refresher = forced(served)
    told = refresher.told()["views"]
    assert (refresher.refused, served.views.loaded["users"].number) == (1, 1)
    assert words in told["users"]["stale"]["reason"]
    assert told["ads"]["stale"] is None  # a view fails alone
    since = told["users"]["stale"]["since"]
    assert began <= since <= time.time()
    assert scores(served, world) == before
    state = refresher.states["users"]
    first = state.retry_at
    refresher.look()
    assert (state.retry_at, state.wait) == (first, 2.0)  # not yet
    for wait in (4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        state.retry_at = 0.0
        refresher.look()
        assert state.wait == wait
    assert refresher.refused == 1  # told and counted once
    assert refresher.told()["views"]["users"]["stale"]["since"] == since  # the first failure
    shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    file.write_bytes(good)
    state.retry_at = 0.0
    refresher.look()
    if (
        state := refresher.states["users"]
    ).changed:  # other files than those that failed are read when they are at rest
        state.changed_at -= 9
        refresher.look()
    assert refresher.told()["views"]["users"]["stale"] is None
    assert served.views.loaded["users"].number == 2
    assert scores(served, world) == before


def test_files_that_still_change_are_not_read(world: World, views: dict[str, str], served: ServedFfm) -> None:
    refresher = ViewRefresher(served, every=1e-9)
    rewritten(views["ads"], with_("bid", 1.0))
    assert not refresher.look()
    rewritten(views["ads"], with_("bid", 2.0))
    refresher.states["ads"].changed_at -= 9
    assert not refresher.look()  # another change: the second begins anew
    refresher.states["ads"].changed_at -= 9
    assert refresher.look()
    assert refresher.refreshed == 1
    assert not refresher.look()


def test_rows_in_memory_have_nothing_to_read_again(world: World) -> None:
    users, ads = (pq.read_table(world.data / name) for name in ("users", "ads"))
    served = open_served(ModelFolder.open(world.folder), views={"users": users, "ads": ads})
    assert served.views.names == ["users", "ads"]
    assert served.views.refreshable == []
    with pytest.raises(SourceError, match="no files"):
        served.views.found("users")
    settings = Settings(views_seconds=5.0, views={"users": users, "ads": ads})
    with pytest.raises(PlanError, match=r"have no files to watch; remove the option"):
        Server.open(world.folder, settings)


def test_a_view_that_another_one_joins_takes_it_along(tmp_path: Path) -> None:
    import ctrbox as cb
    from ctrbox import col

    for name, table in {
        "brands": pa.table({"brand": [1, 2], "country": ["ch", "fr"]}),
        "ads": pa.table({"ad": [1, 2], "brand": [1, 2]}),
        "log": pa.table({"id": [1, 2], "ad": [1, 2]}),
    }.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    brands = cb.View(f"{tmp_path}/brands.parquet", key="brand").fill(country="")
    ads = cb.View(f"{tmp_path}/ads.parquet", key="ad").fill(brand=0).join(brands, on="brand")
    log = cb.View(f"{tmp_path}/log.parquet", key="id").join(ads, on="ad")
    plan = cb.compile(log, cb.FeatureSet(sparse={"country": col("country").key()}), device="cpu")
    before = JoinedViews(plan)
    expected = plan.run({"id": 1, "ad": 1}).sparse["country"].values.tolist()
    pq.write_table(pa.table({"brand": [1, 2], "country": ["fr", "ch"]}), tmp_path / "brands.parquet")
    after = before.refreshed(["brands"])
    assert {name: one.number for name, one in after.loaded.items()} == {"brands": 2, "ads": 2}
    assert after.plan.run({"id": 1, "ad": 2}).sparse["country"].values.tolist() == expected
    assert before.plan.run({"id": 1, "ad": 1}).sparse["country"].values.tolist() == expected
    pq.write_table(pq.read_table(tmp_path / "ads.parquet").slice(0, 0), tmp_path / "ads.parquet")
    with pytest.raises(DataError, match="is empty now"):
        after.refreshed(["ads"])


def versions(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(get(server, "/v1/views")[1])["views"]
    return found


def test_every_worker_reads_the_new_rows_and_so_does_the_successor_of_one(
    world: World, views: dict[str, str], tmp_path: Path
) -> None:
    options = (
        "--workers",
        "2",
        "--views-every",
        "0.1",
        "--view",
        f"users={views['users']}",
        "--view",
        f"ads={views['ads']}",
    )
    with running(world.folder, *options) as server:
        first = server.score(asked(world))
        assert first.headers["ctrbox-views"] == "users=1, ads=1"
        rewritten(views["users"], with_("segment", 3))
        until(lambda: versions(server)[0]["versions"] == [2], "version 2 of the users in both workers")
        expected = scores(open_served(ModelFolder.open(world.folder), views=views), world)
        assert expected != first.json()["scores"]

        def all_answer(told: str) -> None:
            for _ in range(6):
                answer = server.score(asked(world))
                assert answer.headers["ctrbox-views"] == told
                assert np.array_equal(np.float32(answer.json()["scores"]), np.float32(expected))

        all_answer("users=2, ads=1")
        # A damaged file, and a worker that dies meanwhile: its successor has the rows that the others have.
        file = Path(views["users"]) / "a.parquet"
        good = file.read_bytes()
        file.write_bytes(good[:300])
        until(lambda: "stale_views" in orjson.loads(get(server, "/v2/health/ready")[1]), "the view being stale")
        assert get(server, "/v2/health/ready")[0] == 200
        each = orjson.loads(get(server, "/v1/live")[1])["workers"]["each"]
        assert [one["views"] for one in each] == [{"users": 2, "ads": 1}] * 2
        os.kill(each[0]["process"], signal.SIGKILL)
        until(lambda: gone(each[0]["process"]) and get(server, "/v2/health/ready")[0] == 200, "the successor")
        all_answer("users=2, ads=1")
        text = get(server, "/metrics")[1].decode()
        assert 'ctrbox_view_version{view="users"} 2' in text
        assert "ctrbox_views_refused_total 1" in text
        file.write_bytes(good)
        call = httpx.post(f"{server.url}/v1/views/refresh")
        assert (call.status_code, call.json()["call"]) == (202, 1)
        assert httpx.post(f"{server.url}/v1/views/refresh", content=b'{"x": 1}').status_code == 400
        until(lambda: orjson.loads(get(server, "/v1/views")[1])["done"] >= 1, "the call's read")
        until(lambda: all(one["versions"] == [one["version"]] for one in versions(server)), "all workers")
        assert [one["stale"] for one in versions(server)] == [None, None]
        assert np.array_equal(np.float32(server.score(asked(world)).json()["scores"]), np.float32(expected))
        assert server.stop() == 0


def test_a_worker_does_not_give_a_version_to_files_that_changed_while_it_read_them(
    world: World, views: dict[str, str], served: ServedFfm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor has read other rows as version 2; it will read the new ones as version 3."""
    board, supervisor = Board(1), open_served(ModelFolder.open(world.folder), views=views)
    refresher = ViewRefresher(supervisor)
    rewritten(views["ads"], with_("bid", 2.5))

    def published() -> None:
        refresher.ask()
        refresher.look()
        board.publish(1, {"views": refresher.told()})

    published()
    follower, before = ViewFollower(served, Desk(board, 0)), scores(served, world)
    reopened = refreshed_views.reopened_frame

    def reopened_later(graph: Any, frame: Any) -> Any:
        if frame.name == "ads":
            rewritten(views["ads"], with_("bid", 7.5))
        return reopened(graph, frame)

    with monkeypatch.context() as patched:
        patched.setattr(refreshed_views, "reopened_frame", reopened_later)
        assert not follower.look()
    assert scores(served, world) == before
    assert served.answer(served.reader.from_json(asked(world))).views == b"users=1, ads=1"
    published()
    assert follower.look()
    assert scores(served, world) == scores(supervisor, world) != before


@pytest.mark.parametrize(("bid", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (-2.0, "nan")])
def test_a_view_whose_numbers_give_no_finite_feature_is_an_error_that_names_the_feature(
    world: World, views: dict[str, str], served: ServedFfm, bid: float, shown: str
) -> None:
    rewritten(views["ads"], with_("bid", bid))
    assert forced(served).refused == 0  # only the features of a row show whether a number can be used
    with pytest.raises(DataError, match=f"row 0: dense column 'log_bid' is {shown}; expected a finite number"):
        scores(served, world)
