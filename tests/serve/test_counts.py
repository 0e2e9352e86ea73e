"""The parts of the server that count, each alone, with a clock that the test moves: figures, cache, door, queue, log lines."""

from __future__ import annotations

import errno
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox._native import ContextCache
from ctrbox.errors import DataError, PlanError, WriteError
from ctrbox.loop.status import NAMED, Complaints
from ctrbox.serve import open_file_limit
from ctrbox.serve.connection_limits import Client, Door, client_of
from ctrbox.serve.log_limit import KINDS, LogLimit
from ctrbox.serve.metrics import BOUNDS, ByLabel, Metrics, escaped, milliseconds, quantile, resident
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.reload import passing
from ctrbox.serve.request_queue import LONGEST_TURN, ScoringQueue, settle
from ctrbox.serve.unlearned_keys import REQUESTS, KnownKeys

ENTRY = ContextCache.ENTRY


class Clock:
    """Stands for the module `time`; every kind of time is ``now``, which only the test moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    time = thread_time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1000.0)
    for module in ("metrics", "request_queue", "log_limit"):
        monkeypatch.setattr(f"ctrbox.serve.{module}.time", made)
    return made


# ---- figures


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0: 1}, 0.5, BOUNDS[0] / 2),
        ({0: 1, 1: 1}, 0.5, BOUNDS[0] / 2),
        ({0: 1, 1: 1}, 0.51, (BOUNDS[0] + BOUNDS[1]) / 2),
        ({5: 99, 40: 1}, 0.99, (BOUNDS[4] + BOUNDS[5]) / 2),
        ({5: 98, 40: 2}, 0.99, (BOUNDS[39] + BOUNDS[40]) / 2),
        ({62: 1}, 0.99, (BOUNDS[61] + BOUNDS[62]) / 2),
        ({63: 3}, 0.5, BOUNDS[62]),
    ],
)
def test_a_quantile_is_the_middle_of_the_bucket_that_holds_it(
    counts: dict[int, int], share: float, expected: float | None
) -> None:
    assert quantile([counts.get(k, 0) for k in range(64)], share) == pytest.approx(expected)


def test_seconds_are_shown_as_milliseconds_and_labels_as_prometheus_reads_them() -> None:
    assert (milliseconds(None), milliseconds(0.0), milliseconds(0.0123456)) == (None, 0.0, 12.346)
    assert escaped('a\\b"c\nd') == 'a\\\\b\\"c\\nd'
    assert resident() > 1 << 20
    assert (BOUNDS[0], len(BOUNDS)) == (50e-6, 63)
    assert BOUNDS[-1] == pytest.approx(51, abs=0.1)


def test_the_last_whole_seconds_are_shown_and_older_ones_forgotten(clock: Clock) -> None:
    metrics = Metrics()
    metrics.add("other", 200, 9.0)  # no scoring: counted by its route, not among the latencies
    metrics.add("other", 200, BOUNDS[0], 4)
    metrics.add("score", 200, BOUNDS[10], 2)
    metrics.add("infer", 503, 9.0)
    metrics.add("grpc", 200, BOUNDS[10] * 1.01)
    assert metrics.requests == {("other", 200): 2, ("score", 200): 1, ("infer", 503): 1, ("grpc", 200): 1}
    assert (metrics.candidates, sum(metrics.buckets)) == (6, 3)
    assert (metrics.buckets[0], metrics.buckets[10], metrics.buckets[11]) == (1, 1, 1)  # a bound belongs below
    assert metrics.seconds == pytest.approx(BOUNDS[0] + 2.01 * BOUNDS[10])
    assert metrics.live(10)["requests_per_second"] == 0  # the second is not over
    for later, shown in ((1, True), (10, True), (11, False)):
        clock.now = 1000.9 + later
        found = metrics.live(10)
        expected = (0.4, 0.1, 0.6) if shown else (0, 0, 0)
        rates = (found["requests_per_second"], found["refused_per_second"], found["candidates_per_second"])
        assert rates == pytest.approx(expected)
        assert found["p50_ms"] == (milliseconds((BOUNDS[9] + BOUNDS[10]) / 2) if shown else None)
        assert found["p99_ms"] == (milliseconds((BOUNDS[10] + BOUNDS[11]) / 2) if shown else None)
        minute = found["minute"]
        assert minute["requests"] == [0] * (59 - later) + [4] + [0] * (later - 1)
        assert [k for k, ms in enumerate(minute["p99_ms"]) if ms is not None] == [59 - later]
        assert minute["p50_ms"][59 - later] == milliseconds((BOUNDS[9] + BOUNDS[10]) / 2)
    clock.now = 1060.5  # the same place in the ring, one minute later
    metrics.add("score", 200, 1.0, 1)
    metrics.add("score", 200, 1.0, 1)
    clock.now = 1061.0
    assert metrics.live(1)["requests_per_second"] == 2


def test_the_text_for_prometheus_has_every_count(clock: Clock) -> None:
    metrics = Metrics()
    metrics.add("score", 200, BOUNDS[6], 5)
    metrics.add("score", 200, BOUNDS[7], 5)
    metrics.add("score", 503, 0.0)
    metrics.reloaded(2, 0.1, "patch")
    metrics.not_reloaded("damaged")
    text = metrics.text({"b": 0.5, "a": 7}, {"hits": 3}, [ByLabel("keys", "Keys.", [({"f": 'a"', "g": "b"}, 9)])])
    lines = text.splitlines()
    assert text.endswith("\n")
    assert lines[:4] == [
        "# HELP ctrbox_requests_total Requests answered.",
        "# TYPE ctrbox_requests_total counter",
        'ctrbox_requests_total{route="score",code="200"} 2',
        'ctrbox_requests_total{route="score",code="503"} 1',
    ]
    buckets = [line.split()[1] for line in lines if "_bucket" in line]
    assert buckets == ["0", "1", *["2"] * 9, "2"]
    assert f'ctrbox_request_seconds_bucket{{le="{BOUNDS[6]:.6g}"}} 1' in lines
    assert f"ctrbox_request_seconds_sum {BOUNDS[6] + BOUNDS[7]:.9g}" in lines
    assert "ctrbox_request_seconds_count 2" in lines
    assert 'ctrbox_keys_total{f="a\\"",g="b"} 9' in lines
    values = dict(line.split() for line in lines if "{" not in line and not line.startswith("#"))
    assert {name: values[f"ctrbox_{name}"] for name in ("a", "b", "hits_total", "candidates_total")} == {
        "a": "7",
        "b": "0.5",
        "hits_total": "3",
        "candidates_total": "10",
    }
    assert (values["ctrbox_patches_applied_total"], values["ctrbox_patches_refused_total"]) == ("1", "1")
    assert values["process_start_time_seconds"] == "1000.000"
    assert "# TYPE ctrbox_a gauge" in lines
    assert "# TYPE ctrbox_hits_total counter" in lines


def test_a_model_is_stale_since_the_first_version_that_could_not_be_loaded(clock: Clock) -> None:
    metrics = Metrics()
    assert metrics.stale_seconds() == 0
    metrics.stale(3, "first")
    clock.now += 5
    metrics.stale(4, "second")
    assert metrics.staleness is not None
    assert (metrics.staleness.since, metrics.staleness.version, metrics.staleness.reason) == (1000.0, 4, "second")
    assert metrics.stale_seconds() == 5
    clock.now = 900.0  # the clock was set back
    assert metrics.stale_seconds() == 0
    clock.now = 1010.0
    metrics.fresh()
    assert metrics.stale_seconds() == 0
    metrics.stale(5, "third")
    metrics.not_reloaded("third")
    metrics.reloaded(5, 0.25, "whole file")
    assert not metrics.last_refusal
    assert metrics.stale_seconds() == 0
    clock.now = 2000.0
    assert metrics.stale_seconds() == 0
    assert metrics.last_reload == {"version": 5, "seconds": 0.25, "how": "whole file", "at": 1010.0}


def test_versions_are_counted_by_what_was_read_for_them_and_refusals_by_their_reason(clock: Clock) -> None:
    metrics, other = Metrics(), Metrics(started=5.0)
    metrics.reloaded(2, 0.1, "patches", 100)
    metrics.reloaded(3, 0.1, "whole file", 2000)
    metrics.reloaded(4, 0.1, "patches", 30)
    metrics.not_reloaded("damaged")
    metrics.not_reloaded("not signed", signature=True)
    other.hear(metrics.told())
    for one in (metrics, other):
        values = dict(line.split() for line in one.text({}, {}, memory=77).splitlines() if not line.startswith("#"))
        names = ("patches_applied", "patches_refused", "signatures_refused", "versions_by_patches")
        names += ("versions_by_whole_file", "version_bytes")
        assert [values[f"ctrbox_{name}_total"] for name in names] == ["3", "2", "1", "2", "1", "2130"]
        assert values["process_resident_memory_bytes"] == "77"
        assert one.last_refusal == "not signed"
    assert "process_start_time_seconds 5.000" in other.text({}, {})
    assert "process_resident_memory_bytes 77" not in metrics.text({}, {})
    text = metrics.text({}, {}, more=["# one more line", "more 1"])
    assert text.index("more 1") < text.index("# TYPE ctrbox_candidates_total counter")
    assert resident(0) == 0  # there is no such process


# ---- the cache of contexts


def test_a_context_of_a_quarter_of_the_cache_is_kept_and_a_larger_one_is_not() -> None:
    cache = ContextCache(4 * 2048)
    cache.put(b"a", 1, 2048 - ENTRY)
    assert (cache.get(b"a"), cache.bytes) == (1, 2048)
    cache.put(b"a", 2, 2049 - ENTRY)  # what was there before is of no use any more
    assert (cache.get(b"a"), cache.bytes, len(cache)) == (None, 0, 0)
    assert (cache.counts.hits, cache.counts.misses) == (1, 1)


def test_the_least_recently_used_context_goes_when_the_cache_is_more_than_full() -> None:
    cache = ContextCache(4 * 2048)
    for name in (b"a", b"b", b"c", b"d"):
        cache.put(name, name, 2048 - ENTRY)
    assert (cache.bytes, cache.counts.evictions) == (8192, 0)
    cache.get(b"a")
    cache.put(b"e", b"e", 1)
    assert [name for name in (b"a", b"b", b"c", b"d", b"e") if cache.get(name)] == [b"a", b"c", b"d", b"e"]
    assert (cache.bytes, cache.counts.evictions) == (3 * 2048 + 1 + ENTRY, 1)
    cache.put(b"e", b"e", 3)  # the same context, grown
    assert cache.bytes == 3 * 2048 + 3 + ENTRY


def test_free_memory_is_given_back_after_many_evicted_bytes() -> None:
    cache = ContextCache(4 * 2048, 3 * 2048)
    for k in range(7):
        cache.put(b"%d" % k, k, 2048 - ENTRY)
    assert (cache.counts.evictions, cache.counts.given_back) == (3, 0)
    cache.put(b"7", 7, 2048 - ENTRY)
    assert cache.counts.given_back == 1
    for k in range(8, 11):
        cache.put(b"%d" % k, k, 2048 - ENTRY)
    assert cache.counts.given_back == 1  # the count began anew
    cache.clear()
    assert (cache.counts.given_back, cache.bytes, len(cache)) == (2, 0, 0)
    large = ContextCache(64 * 2048, 3 * 2048)  # of a large cache an eighth
    for k in range(64 + 8):
        large.put(b"%d" % k, k, 2048 - ENTRY)
    assert large.counts.given_back == 0
    large.put(b"72", 72, 2048 - ENTRY)
    assert large.counts.given_back == 1


# ---- the door


class Kept:
    """A connection that leaves with its bytes when it is dropped."""

    def __init__(self, door: Door, client: Client, held: int = 0) -> None:
        self.door, self.client, self.held, self.reasons = door, client, held, list[str]()

    def dropped(self, reason: str) -> None:
        self.reasons.append(reason)
        self.door.leave(self.client, self, self.held)


def entered(door: Door, host: str) -> Client:
    client = door.enter(host)
    assert client is not None
    return client


@pytest.mark.parametrize(
    ("connections", "size", "share", "largest", "expected"),
    [
        (100, 1000, 0.25, 100, (100, 1000, 25, 250)),
        (3, 1000, 0.25, 300, (3, 1200, 1, 600)),
        (8, 400, 0.5, 100, (8, 400, 4, 200)),
    ],
)
def test_a_client_may_hold_its_share_and_always_one_large_request(
    connections: int, size: int, share: float, largest: int, expected: tuple[int, ...]
) -> None:
    door = Door(connections, size, share, largest)
    assert (door.most_connections, door.most_bytes, door.client_connections, door.client_bytes) == expected


def test_a_client_at_its_share_makes_room_itself_or_is_refused() -> None:
    door = Door(10, 1000, 0.3, 10)
    clients = [entered(door, "10.0.0.1") for _ in range(3)]
    assert (clients[0].connections, door.dropped) == (3, 0)
    reading, idle = Kept(door, clients[0]), Kept(door, clients[0])
    clients[0].reading[reading] = None
    clients[0].idle[idle] = None
    assert clients[0].oldest() is idle  # it is missed less than a request that is being read
    assert entered(door, "10.0.0.1") is clients[0]
    assert (len(idle.reasons), len(reading.reasons), door.connections) == (1, 0, 3)
    assert "to make room for other connections" in idle.reasons[0]
    assert entered(door, "10.0.0.1").connections == 3
    assert len(reading.reasons) == 1
    assert door.enter("10.0.0.1") is None
    assert (door.refused, door.dropped, door.connections) == (1, 2, 3)


def test_the_last_place_is_given_and_no_more() -> None:
    door = Door(3, 1000, 1.0, 10)
    first = entered(door, "a")
    for host in "bc":
        entered(door, host)
    assert (door.connections, door.dropped) == (3, 0)
    assert door.enter("d") is None
    assert (door.refused, sorted(door.clients)) == (1, ["a", "b", "c"])
    door.leave(first, Kept(door, first), 0)
    assert (sorted(door.clients), door.connections) == (["b", "c"], 2)
    assert entered(door, "d").connections == 1


def test_bytes_are_counted_up_to_the_share_of_a_client_and_the_limit_of_all() -> None:
    door = Door(10, 1000, 0.5, 100)
    small, large = entered(door, "a"), entered(door, "b")
    assert door.hold(small, 500) == ""
    assert "requests from your address may use at most 500 bytes" in door.hold(small, 1)
    assert door.hold(small, -101) == ""
    assert (small.held, door.held) == (400, 400)
    connection = Kept(door, large, held=500)
    large.reading[connection] = None
    assert door.hold(large, 500) == ""
    third = entered(door, "c")
    assert door.hold(third, 100) == ""  # all 1,000 bytes
    assert not connection.reasons
    assert door.hold(third, 1) == ""
    assert connection.reasons == ["the server dropped this request to free memory for other clients; retry shortly"]
    assert (door.held, door.dropped, "b" in door.clients) == (501, 1, False)
    assert door.hold(small, 100) == ""
    assert door.hold(third, 399) == ""
    assert "incoming requests already use all 1,000 bytes" in entered_hold(door)
    assert door.hold(third, -400) == ""


def entered_hold(door: Door) -> str:
    return door.hold(entered(door, "d"), 1)


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::/64"),
        ("2001:db8:0:5:ffff:ffff:ffff:ffff", "2001:db8:0:5::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("no:address", "no:address"),
    ],
)
def test_what_counts_as_one_client(host: str, client: str) -> None:
    assert client_of(host) == client


# ---- the queue


def test_the_pace_follows_the_answers_while_others_wait(clock: Clock) -> None:
    queue = ScoringQueue(0, 20, 1.0)
    for _ in range(3):
        queue.admit()
    queue.leave()
    assert queue.pace == pytest.approx(0.0002)  # one hiccup raises it by a tenth of 2 ms
    clock.now += 0.001
    queue.leave()
    assert queue.pace == pytest.approx(0.0002 + 0.1 * (0.001 - 0.0002))
    clock.now += 7
    queue.leave()  # nobody waited behind it
    assert queue.pace == pytest.approx(0.00028 / 2)
    assert queue.pending == 0


def test_who_would_wait_longer_than_the_deadline_is_refused(clock: Clock) -> None:
    queue = ScoringQueue(0, 20, 1.0)
    queue.pace = 0.125
    for _ in range(9):
        assert queue.admit() == clock.now + 1.0
    with pytest.raises(Refused, match="9 requests are already waiting"):
        queue.admit()
    assert queue.refusals == 1


def test_places_and_deadlines_end_exactly_where_they_are_said_to(clock: Clock) -> None:
    assert [ScoringQueue(0, most, 1.0).most for most in (0, 1, 9)] == [1, 2, 10]
    assert [ScoringQueue(0, 9, 1.0, share).most_of_client for share in (0.01, 0.25, 1.0)] == [1, 2, 10]
    threads = ScoringQueue(3, 4, 1.0)
    assert (threads.most, len(threads.threads)) == (7, 3)
    assert threads.drain(1.0)
    queue = ScoringQueue(0, 1, 0.2)
    assert queue.run_here(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        queue.run_here(lambda: 1 // 0, "a")
    assert (queue.pending, dict(queue.places)) == (0, {})
    queue.check(clock.now)
    with pytest.raises(Refused, match="longer than its deadline of 200 ms"):
        queue.check(clock.now - 0.001)
    queue.admit()
    assert not queue.drain(0.01)  # it is still under way
    with pytest.raises(Refused, match="shutting down"):
        queue.admit()


def test_a_drained_queue_has_handed_over_every_outcome() -> None:
    handed: list[Any] = []

    def hand_over(done: Any, *outcome: Any) -> None:
        time.sleep(0.2)
        handed.append(outcome)

    queue = ScoringQueue(2, 4, 1.0)
    queue.start()
    for number in range(2):
        loop = SimpleNamespace(call_soon_threadsafe=hand_over)
        queue._handed.put((lambda number=number: number, queue.admit("a"), None, "a", loop))
    assert queue.drain(5.0)
    assert sorted(handed) == [(0, None), (1, None)]
    assert not any(thread.is_alive() for thread in queue.threads)


class Loop:
    """As much of an event loop as a turn of the queue uses."""

    def __init__(self, ready: bool) -> None:
        self._ready = ready
        self.called: list[Any] = []

    def call_soon(self, work: Any, *given: Any) -> None:
        self.called.append(work)


@pytest.mark.parametrize(
    ("since", "busy", "answered", "again"),
    [
        (2, True, 0, True),  # others wait for the loop: they come first
        (2, False, 3, True),  # nobody waits: answers for as long as others took, and the one that passes it
        (4, True, 5, True),  # others have had their time
        (99, True, 9, False),
    ],
)
def test_a_turn_takes_as_long_as_others_took_before_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, since: int, busy: bool, answered: int, again: bool
) -> None:
    tick = 2.0**-10  # about a millisecond, without rounding
    monkeypatch.setattr("ctrbox.serve.request_queue.GIVE_WAY", 4 * tick)
    queue, loop, outcomes = ScoringQueue(0, 20, 1.0), Loop(busy), list[Any]()

    def work() -> float:
        clock.now += tick
        return clock.now

    queue._ended = clock.now - since * tick
    for _ in range(9):
        queue._waiting.append((work, queue.admit(), lambda *found: outcomes.append(found), ""))
    queue._turning = True
    queue._turn(loop)  # type: ignore[arg-type]
    assert len(outcomes) == answered
    assert [bool(loop.called), queue._turning] == [again, again]
    assert queue.pending == 9 - answered
    if answered:
        assert queue._ended == clock.now
        assert outcomes[0] == (1000.0 + tick, None)


def test_no_turn_takes_longer_than_its_limit(clock: Clock) -> None:
    queue, done = ScoringQueue(0, 20, 1.0), list[Any]()

    def work() -> None:
        clock.now += LONGEST_TURN * 0.75

    for _ in range(5):
        queue._waiting.append((work, queue.admit(), lambda *found: done.append(found), ""))
    queue._ended = clock.now - 5.0
    queue._turn(Loop(True))  # type: ignore[arg-type]
    assert len(done) == 2


def test_a_future_is_settled_once() -> None:
    def future(done: bool) -> tuple[Any, list[Any]]:
        told: list[Any] = []
        made = SimpleNamespace(done=lambda: done, set_result=told.append, set_exception=told.append)
        return made, told

    fault = ValueError("x")
    for done, failure, expected in ((True, None, []), (False, None, [7]), (False, fault, [fault])):
        made, told = future(done)
        settle(made, 7, failure)
        assert told == expected


# ---- log lines


def record(line: int) -> logging.LogRecord:
    return logging.LogRecord("ctrbox.serve", logging.WARNING, "/x/file.py", line, "broken", None, None)


def test_lines_of_one_kind_pass_until_their_window_is_full(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit(most=2, within=10.0)
    assert [limit.filter(record(1)) for _ in range(2)] == [True, True]
    clock.now += 9.9
    assert [limit.filter(record(1)), limit.filter(record(2))] == [False, True]
    with caplog.at_level(logging.WARNING, "ctrbox.serve"):
        limit.tell()  # the window has not ended
        assert not caplog.records
        clock.now = 1010.0
        assert not limit.filter(record(1))  # the window stays full until it was told
        limit.tell()
        assert [r.getMessage() for r in caplog.records] == [
            "2 more log lines like the last ones (file.py:1) were left out"
        ]
        assert limit.filter(record(1))
        clock.now = 1030.0
        limit.tell()  # nothing was left out since
        assert len(caplog.records) == 1
    assert limit.left_out == 2
    assert [limit.filter(record(3)) for _ in range(3)] == [True, True, False]
    quiet = LogLimit(most=2, within=10.0)
    assert [quiet.filter(record(1)) for _ in range(2)] == [True, True]
    clock.now += 10.0
    assert [quiet.filter(record(1)) for _ in range(3)] == [True, True, False]  # a new window


def test_beyond_so_many_kinds_all_lines_count_as_one(clock: Clock) -> None:
    limit = LogLimit(most=1, within=10.0)
    assert all(limit.filter(record(k)) for k in range(KINDS))
    assert [limit.filter(record(KINDS + k)) for k in range(3)] == [True, False, False]
    assert not limit.filter(record(0))  # a known kind keeps its own count


# ---- keys, files, faults, complaints


def test_a_field_is_named_after_so_many_requests_in_a_row_without_a_known_key() -> None:
    keys = KnownKeys(["user", "ad"])
    for k in range(REQUESTS):
        assert keys.never_found() == []
        keys.add([("user", 3, 3), ("ad", 3, 2 if k else 3), ("user", 0, 0)])
    assert keys.never_found() == ["user"]
    assert keys.counted() == {
        "user": {"known": 0, "unknown": 3 * REQUESTS},
        "ad": {"known": REQUESTS - 1, "unknown": 2 * REQUESTS + 1},
    }
    keys.restart()
    assert keys.never_found() == []


@pytest.mark.parametrize(("limit", "expected"), [(96, 16), (97, 17), (116, 30), (95, None), (40, None)])
def test_connections_are_as_many_as_the_limit_of_files_leaves(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: int | None
) -> None:
    monkeypatch.setattr(open_file_limit, "raise_limit", lambda: limit)
    monkeypatch.setattr(open_file_limit, "open_files", lambda: 16)
    if expected is not None:
        assert open_file_limit.connections_allowed(30) == expected
        return
    with pytest.raises(PlanError) as told:
        open_file_limit.connections_allowed(30)
    assert f"leaves room for only {max(0, limit - 80)} connections" in str(told.value)


def test_the_files_that_a_process_has_open_are_counted() -> None:
    before = open_file_limit.open_files()
    with open(__file__, encoding="utf-8"), open(__file__, encoding="utf-8"):
        assert open_file_limit.open_files() == before + 2


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.ENOENT, "gone"), False),
        (OSError(errno.ENOTDIR, "gone"), False),
        (MemoryError(), True),
        (DataError("damaged"), False),
        (OSError("no number"), True),
        (caused(WriteError("cannot write"), OSError(errno.EMFILE, "files")), True),
        (caused(DataError("damaged"), OSError(errno.ENOENT, "gone")), False),
        (caused(DataError("damaged"), MemoryError()), True),
        (ValueError("of somebody else"), True),
    ],
)
def test_a_fault_of_the_machine_passes_and_one_of_the_data_stays(error: Exception, expected: bool) -> None:
    assert passing(error) is expected


def test_the_first_complaints_are_told_and_further_ones_counted(tmp_path: Any) -> None:
    told: list[str] = []
    complaints = Complaints(told.append, tmp_path / "refused.jsonl")
    for row in range(NAMED + 2):
        complaints.line("c-1" if row else "", 1233 + row, "no number")
    assert told[:2] == ["skipped: no number", "skipped: c-1 line 1,235: no number"]
    assert told[NAMED - 1 :] == [
        "skipped: c-1 line 1,243: no number",
        "further skipped events of this kind are only counted",
    ]
    assert complaints.lines == NAMED + 2
    complaints.chunk("c-2", "cut off")
    assert told[-1] == "refused: chunk c-2: cut off"
    assert (tmp_path / "refused.jsonl").read_text().startswith('{"chunk": "c-2", "why": "cut off", "time": "')
    assert complaints.chunks == 1
    Complaints(told.append, tmp_path / "none" / "refused.jsonl").chunk("c-3", "cut off")
    assert told[-1].endswith("refused.jsonl: No such file or directory")


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(256, 4096, 4096), (4096, 4096, 4096), (256, -1, 1 << 30), (-1, -1, 1 << 30)],
)
def test_the_soft_limit_of_files_is_raised_to_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int
) -> None:
    held, asked = [soft, hard], list[Any]()

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        held[:] = limits

    def getrlimit(which: int) -> tuple[int, int]:
        return held[0], held[1]

    made = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=getrlimit, setrlimit=setrlimit)
    monkeypatch.setattr(open_file_limit, "resource", made)
    assert open_file_limit.raise_limit() == expected
    assert asked == ([(hard, hard)] if soft != hard else [])


def test_memory_is_given_back_after_eight_megabytes_at_least() -> None:
    cache = ContextCache(4 << 20)
    for k in range(12):  # four are kept
        cache.put(b"%d" % k, k, (1 << 20) - ENTRY)
    assert (cache.counts.evictions, cache.counts.given_back) == (8, 0)
    cache.put(b"12", 12, 1)
    assert cache.counts.given_back == 1
