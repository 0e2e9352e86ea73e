"""When joined views are read again, with a clock and views that the test moves; the reading itself is in test_view_refresh.py."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.errors import PlanError, SourceError
from ctrbox.serve import view_refresh
from ctrbox.serve.memory_shared_by_workers import Board, Desk
from ctrbox.serve.view_refresh import ViewFollower, ViewRefresher, check_refreshes


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(view_refresh, "time", made)
    return made


@dataclass(frozen=True)
class Loaded:
    number: int
    digest: str
    rows: int = 1200
    read_at: float = 0.0
    seconds: float = 0.25


class Views:
    """Joined views whose files are texts: the digest of a view is the text of its file."""

    def __init__(self, files: dict[str, Any], loaded: dict[str, Loaded]) -> None:
        self.files, self.loaded = files, loaded
        self.names = list(loaded)
        self.refreshable = [name for name, one in loaded.items() if one.digest]

    def found(self, name: str) -> Any:
        if isinstance(self.files[name], Exception):
            raise self.files[name]
        return SimpleNamespace(digest=self.files[name])

    def refreshed(self, names: list[str], numbers: Any = None, stop: Any = None) -> Views:
        made = dict(self.loaded)
        for name in names:
            if self.files[name].startswith("bad"):
                raise SourceError(f"{name} is damaged")
            number = made[name].number + 1 if numbers is None else numbers[name]
            made[name] = replace(made[name], number=number, digest=self.files[name])
        return Views(self.files, made)


class Served:
    def __init__(self, **files: Any) -> None:
        self.views = Views(files, {name: Loaded(1, text) for name, text in files.items()})

    def take_views(self, views: Views) -> None:
        self.views = views

    @property
    def numbers(self) -> list[int]:
        return [one.number for one in self.views.loaded.values()]


def watching(every: float = 0.0, **files: Any) -> tuple[Any, Any, dict[str, Any]]:
    served: Any = Served(**files)
    return ViewRefresher(served, every), served, served.views.files


def test_files_are_listed_every_few_seconds_and_read_when_they_have_rested_for_one(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    refresher, served, files = watching(10.0, ads="a", users="u")
    assert not refresher.look()
    files["ads"] = "b"
    clock.now += 9.5
    assert not refresher.look()
    assert refresher.states["ads"].changed == ""  # not listed yet
    clock.now += 0.5
    assert not refresher.look()
    assert refresher.states["ads"].changed == "b"
    clock.now += 0.75
    assert not refresher.look()
    files["ads"] = "c"  # another change: the second begins anew
    clock.now += 0.25
    assert not refresher.look()
    clock.now += 1.0
    with caplog.at_level(logging.INFO, "ctrbox.serve"):
        assert refresher.look()
    assert caplog.messages == ["joined view 'ads' was read again in 0.25 s: version 2 has 1,200 rows"]
    assert (served.numbers, refresher.refreshed, refresher.refused) == ([2, 1], 1, 0)
    assert not refresher.look()
    files["users"] = "v"
    clock.now += 10.0
    assert not refresher.look()
    files["users"] = "u"  # the files that serve are back
    clock.now += 5.0
    assert not refresher.look()
    assert refresher.states["users"].changed == ""


def test_without_a_time_views_are_read_after_calls_alone(clock: Clock) -> None:
    refresher, served, files = watching(0.0, ads="a", users="u")
    files["ads"] = "b"
    clock.now += 1e6
    assert not refresher.look()
    assert (refresher.ask(), refresher.ask(), refresher.done) == (1, 2, 0)
    assert refresher.look()
    assert (refresher.done, served.numbers, refresher.refreshed) == (2, [2, 2], 2)
    assert not refresher.look()
    assert refresher.told() | {"views": 0} == {"refreshed": 2, "refused": 0, "done": 2, "views": 0}


def test_a_failure_is_told_once_for_each_reason_and_tried_later_each_time(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    refresher, served, files = watching(10.0, ads="a", users="u")
    files["ads"] = "bad 1"
    began = clock.now
    refresher.ask()
    assert refresher.look()  # the users, because a view fails alone
    state = refresher.states["ads"]
    assert (state.retry_at, state.wait, state.reason, state.stale_since) == (began + 1, 2.0, "ads is damaged", began)
    assert (refresher.done, served.numbers) == (1, [1, 2])
    why = "could not refresh joined view 'ads'; the server still uses version 1 of its rows; next try in 1 s: ads is damaged"
    assert caplog.messages == [why]
    clock.now += 0.5
    refresher.look()
    assert state.wait == 2.0
    clock.now += 0.5
    refresher.look()
    assert (state.wait, state.retry_at, refresher.refused) == (4.0, clock.now + 2, 1)
    told = refresher.told()["views"]
    assert told["ads"] == {
        "number": 1,
        "digest": "a",
        "rows": 1200,
        "read_at": 0.0,
        "seconds": 0.25,
        "refreshable": True,
        "stale": {"since": began, "reason": "ads is damaged"},
    }
    assert told["users"]["stale"] is None
    files["ads"] = "bad 2"  # other files: at once again, when they rest
    clock.now += 10.0
    refresher.look()
    assert (state.changed, state.wait) == ("bad 2", 4.0)
    clock.now += 1.0
    refresher.look()
    assert (state.wait, state.retry_at, refresher.refused, state.stale_since) == (2.0, clock.now + 1, 2, began)
    files["ads"] = OSError("gone")
    clock.now += 1.0
    refresher.look()
    assert (state.failed, state.reason, refresher.refused) == ("", "gone", 3)
    files["ads"] = "c"
    clock.now += 1.0
    assert not refresher.look()
    clock.now += 1.0
    assert refresher.look()
    assert (served.numbers, refresher.told()["views"]["ads"]["stale"]) == ([2, 2], None)


def test_files_that_cannot_be_listed_are_told_once_until_their_time(clock: Clock) -> None:
    refresher, _, files = watching(1.0, ads="a")
    files["ads"] = MemoryError()
    refresher.look()
    state = refresher.states["ads"]
    assert (state.reason, state.retry_at, state.wait) == ("MemoryError", clock.now + 1, 2.0)
    clock.now += 1.0
    refresher.look()
    clock.now += 1.0  # listed again, but its next try is later
    refresher.look()
    assert (state.retry_at, state.wait, refresher.refused) == (clock.now + 1, 4.0, 1)


def test_nothing_ends_the_thread_that_watches(caplog: pytest.LogCaptureFixture) -> None:
    refresher, _, files = watching(1e-9, ads="a")
    files["ads"] = CancelledError()
    refresher.look_safely()
    assert not caplog.messages
    files["ads"] = ZeroDivisionError("of somebody else")
    refresher.look_safely()
    assert caplog.messages == ["joined views could not be looked at"]
    assert not refresher._stop.is_set()
    refresher.interrupt()
    refresher.interrupt()
    assert refresher._stop.is_set()


# ---- a worker


def following(**files: Any) -> tuple[Any, Any, Callable[..., None]]:
    board, served = Board(1), Served(**files)

    def published(**numbers: int) -> None:
        digests = {name: served.views.files[name] for name in numbers}
        views = {name: {"number": number, "digest": digests[name]} for name, number in numbers.items()}
        board.publish(1, {"views": {"views": views}})

    return ViewFollower(served, Desk(board, 0)), served, published  # type: ignore[arg-type]


def test_a_worker_reads_the_views_that_the_supervisor_has_read(clock: Clock) -> None:
    follower, served, published = following(ads="a", users="u", rows="")
    files = served.views.files
    assert not follower.look()  # nothing was published yet
    published(ads=1, users=1, rows=1)
    assert not follower.look()
    files["ads"] = "b"
    published(ads=4, users=1, rows=1)
    follower._retry_at = clock.now + 1
    assert not follower.look()
    clock.now += 1.0
    assert follower.look()
    assert (served.numbers, follower._retry_at) == ([4, 1, 1], 0.0)
    assert follower.told()["views"]["ads"]["number"] == 4
    files["users"] = "v"
    published(ads=4, users=2, rows=1)
    files["users"] = "w"  # other files than those that the supervisor has read: it will read them, too
    assert not follower.look()
    assert served.numbers == [4, 1, 1]
    published(ads=4, users=3, rows=1)
    assert follower.look()
    assert served.numbers == [4, 3, 1]
    published(ads=2, users=2, rows=1)  # older ones are not read
    assert not follower.look()


def test_a_worker_tells_why_it_cannot_read_views_and_waits(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    follower, served, published = following(ads="a")
    served.views.files["ads"] = "bad"
    published(ads=2)
    for wait in (1, 2, 4):
        follower.look_safely()
        assert caplog.messages[-1] == f"could not read joined views again; next try in {wait} s: ads is damaged"
        assert (follower._retry_at, follower._wait) == (clock.now + wait, 2.0 * wait)
        count = len(caplog.messages)
        clock.now += wait - 0.5
        follower.look_safely()
        assert len(caplog.messages) == count
        clock.now += 0.5
    served.views.files["ads"] = CancelledError()
    follower.look_safely()
    assert len(caplog.messages) == 3


def test_views_without_files_cannot_be_watched() -> None:
    check_refreshes(0.0, Served())  # type: ignore[arg-type]
    check_refreshes(2.5, Served(ads="a"))  # type: ignore[arg-type]
    for files, why in (
        ({}, "this model joins no views"),
        ({"ads": "", "users": ""}, r"the joined views \['ads', 'users'\] have no files to watch"),
    ):
        with pytest.raises(PlanError, match=rf"^--views-every 2.5 is not possible: {why}; remove the option$"):
            check_refreshes(2.5, Served(**files))  # type: ignore[arg-type]
