"""The memory that workers share, and what they say together; how many workers there are, and when one is replaced."""

from __future__ import annotations

import os
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.embed.ssd.saved_parts import TableParts
from ctrbox.errors import PlanError
from ctrbox.publish.weights_of_models import CLICK_MODEL, DEEP_FFM
from ctrbox.serve import memory_shared_by_workers as board_module
from ctrbox.serve import workers
from ctrbox.serve.figures_of_workers import carried, together
from ctrbox.serve.http_connection import REASONS
from ctrbox.serve.memory_shared_by_workers import NOTE_BYTES, SILENT_SECONDS, Board, Desk, Note
from ctrbox.serve.metrics import CELL, CELLS, ROUTES, STATUSES, Metrics
from ctrbox.serve.model_folder import RUN
from ctrbox.serve.workers import Supervisor, memory_of, reserved, why_one, words_of, worker_count


def figures(hits: int = 0, connections: int = 0, version: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "counters": {"cache_hits": hits},
        "gauges": {"connections": connections},
        "keys": {"user": [hits, 1]},
        "joins": [["ads", ["ad_id"], 2 * hits, hits]],
        "unlearned": [],
        "vectors": None,
        "versions": [version],
        **more,
    }


def test_a_note_is_read_whole_and_one_that_was_half_written_is_not_seen() -> None:
    memory = memoryview(bytearray(Note.SIZE))
    note = Note(memory)
    assert note.read() == {}
    for value in ({"a": 1}, {"b": "ü" * 1000}, {"c": [1, 2]}):
        note.write(value)
        assert Note(memory).read() == value
    # A process that is killed while it writes has written to the other place.
    other = memory[8:] if int(memory[:8].cast("d")[0]) else memory[8 + 16 + NOTE_BYTES :]
    other[:40] = b"\xff" * 40
    assert note.read() == {"c": [1, 2]}
    note.write({"d": 4})
    assert note.read() == {"d": 4}
    valid = memory[8 + 16 :] if not int(memory[:8].cast("d")[0]) else memory[8 + 16 + NOTE_BYTES + 16 :]
    valid[0] = 0  # damaged: its checksum does not fit
    assert note.read() == {}
    with pytest.raises(ValueError, match="at most 1,048,576 are possible"):
        note.write({"e": "x" * NOTE_BYTES})


def test_what_workers_say_is_added_up_and_a_part_that_says_nothing_is_none() -> None:
    one = figures(3, 5, version=8, unlearned=["user"], vectors=7)
    found = together([{}, one, figures(4, 2, version=7, vectors=7)])
    assert found["counters"] == {"cache_hits": 7}
    assert found["gauges"] == {"connections": 7}
    assert found["keys"] == {"user": [7, 2]}
    assert found["joins"] == [["ads", ["ad_id"], 14, 7]]
    assert (found["unlearned"], found["vectors"], found["versions"]) == (["user"], 7, [7, 8])
    left = carried(one)
    assert left["counters"] == {"cache_hits": 3}
    assert (left["gauges"], left["unlearned"], left["vectors"], left["versions"]) == ({}, [], None, [])
    assert carried({}) == {}


def test_a_worker_that_takes_the_place_of_a_dead_one_goes_on_counting() -> None:
    board = Board(2)
    desks = [Desk(board, 0), Desk(board, 1)]
    metrics = [Metrics(place.cells, [p.cells for p in board.places]) for place in board.places]
    for number, (desk, counts) in enumerate(zip(desks, metrics, strict=True)):
        board.occupy(number, 100 + number)
        desk.begin()
        desk.place.connections[0] = 3 - number
        counts.add("score", 200, 0.001, 10)
        desk.post(figures(5, 3 - number))
    assert board.serving == 2
    assert desks[0].crowded(3)
    assert not desks[1].crowded(2)
    assert [place.told() for place in board.places] == [
        {"process": 100, "connections": 3, "requests": 1, "views": {}},
        {"process": 101, "connections": 2, "requests": 1, "views": {}},
    ]
    board.vacate(0)
    assert (board.serving, board.replaced) == (1, 1)
    assert board.places[0].told() == {"process": 0, "connections": 0, "requests": 1, "views": {}}
    assert not desks[1].crowded(9)  # nobody else takes connections
    assert desks[1].all(figures(6, 2))["counters"] == {"cache_hits": 11}
    assert desks[1].all(figures(6, 2))["gauges"] == {"connections": 2}
    successor = Desk(board, 0)
    successor.begin()
    assert successor.all(figures(1, 1))["counters"] == {"cache_hits": 12}
    assert successor.all(figures(2, 1))["counters"] == {"cache_hits": 13}
    again = Metrics(board.places[0].cells, [p.cells for p in board.places])
    again.add("score", 200, 0.002, 10)
    for counts in (again, metrics[1]):
        assert counts.requests == {("score", 200): 3}
        assert (counts.candidates, sum(counts.buckets)) == (30, 3)
        assert counts.seconds == pytest.approx(0.004)
    assert not board.draining
    board.drain()
    assert board.draining


def test_a_worker_whose_event_loop_hangs_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=500.0)
    monkeypatch.setattr(board_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    board = Board(2)
    one, other = Desk(board, 0), Desk(board, 1)
    one.begin()
    other.begin()
    clock.now += SILENT_SECONDS - 1
    other.post(figures())
    assert board.serving == 2
    clock.now += 1
    assert board.serving == 1
    assert not other.crowded(3)  # the one that hangs takes no connection
    one.post(figures())
    assert board.serving == 2
    one.end()
    assert board.serving == 1


def test_cells_of_workers_do_not_overlap_and_every_status_has_one() -> None:
    board = Board(3)
    for k, place in enumerate(board.places):
        place.cells[0] = place.cells[CELLS - 1] = k + 1
        place.facts[7] = -1
        place.note.write({"k": k})
    board.publish(4, {"version": 4})
    assert [(p.cells[0], p.cells[CELLS - 1], sum(p.cells)) for p in board.places] == [(1, 1, 2), (2, 2, 4), (3, 3, 6)]
    assert [p.note.read() for p in board.places] == [{"k": 0}, {"k": 1}, {"k": 2}]
    assert (board.version, board.news.read()) == (4, {"version": 4})
    assert set(REASONS) == set(STATUSES)
    assert len(CELL) == len(ROUTES) * len(STATUSES)


def test_news_of_versions_reach_another_process_as_they_are() -> None:
    one, other = Metrics(), Metrics()
    one.reloaded(3, 0.5, "patch")
    one.stale(4, "damaged")
    one.not_reloaded("damaged")
    other.hear(one.told())
    assert (other.applied, other.refused, other.last_refusal) == (1, 1, "damaged")
    assert (other.last_reload, other.staleness) == (one.last_reload, one.staleness)
    one.fresh()
    other.hear(one.told())
    assert other.staleness is None


def test_the_default_is_one_worker_for_each_usable_core_where_the_model_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: Any = SimpleNamespace(past=None)
    monkeypatch.setattr(workers.sys, "platform", "linux")
    monkeypatch.setattr(workers, "_native", SimpleNamespace(usable_cores=lambda: 6))
    assert worker_count(None, DEEP_FFM, served, 8192) == worker_count(None, RUN, served, 8192) == 6
    assert worker_count(None, CLICK_MODEL, served, 8192) == 1
    assert worker_count(None, DEEP_FFM, served, 70) == 4  # sixteen connections each
    assert worker_count(4, DEEP_FFM, served, 64) == worker_count(None, DEEP_FFM, served, 64) == 4
    assert worker_count(None, DEEP_FFM, served, 5) == 1
    assert worker_count(None, DEEP_FFM, SimpleNamespace(past=SimpleNamespace(shared=True)), 8192) == 6  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"^--workers 2 is not possible: the state of histories is kept by one process"):
        worker_count(2, DEEP_FFM, SimpleNamespace(past=SimpleNamespace(shared=False)), 8192)  # type: ignore[arg-type]
    assert worker_count(3, CLICK_MODEL, served, 8192) == 3
    with pytest.raises(PlanError, match=r"leaves 14 connections for each of 5 workers.*raise it to 80"):
        worker_count(5, DEEP_FFM, served, 70)
    monkeypatch.setattr(workers.sys, "platform", "darwin")
    assert worker_count(None, DEEP_FFM, served, 8192) == worker_count(1, DEEP_FFM, served, 8192) == 1
    with pytest.raises(PlanError, match=r"--workers 2 is not possible: .* on Linux only; use --workers 1"):
        worker_count(2, DEEP_FFM, served, 8192)


def test_a_worker_that_ends_soon_again_and_again_is_started_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(SimpleNamespace(workers=2, refresher=None))  # type: ignore[arg-type]
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(workers.os, "waitpid", lambda process, how: (process, signal.SIGKILL))
    worker = supervisor.workers[0]
    waits = []
    for lived in (1.0, 1.0, 1.0, 1.0, 20.0, 9.9, *[0.0] * 9):
        worker.process, worker.began = 77, clock.now
        clock.now += lived
        supervisor._reap()
        assert worker.process == 0
        waits.append(worker.due - clock.now)
    assert waits == [0, 1, 2, 4, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert supervisor.board.replaced == len(waits)


def test_the_end_of_a_process_is_said_in_words() -> None:
    assert words_of(signal.SIGKILL) == "by SIGKILL"
    assert words_of(3 << 8) == "with exit code 3"
    assert words_of(0) == "with exit code 0"
    assert words_of(50) == "by signal 50"


def test_a_port_for_grpc_that_another_server_has_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PlanError, match=f"cannot listen at 127.0.0.1:{port} for gRPC: Address already in use"):
            reserved("127.0.0.1", port)
    held = reserved("127.0.0.1", port)
    others = reserved("127.0.0.1", port)  # as a worker does
    for sock in (*held, *others):
        sock.close()


def of_tables(*tables: Any) -> Any:
    return SimpleNamespace(click_model=SimpleNamespace(sources=[SimpleNamespace(embedder=one) for one in tables]))


def test_a_sparse_table_of_the_run_or_of_its_pre_rank_needs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ServedRun", SimpleNamespace)
    on_disk, in_memory = of_tables(object(), TableParts.__new__(TableParts)), of_tables(object())
    for served, prerank, several in (
        (SimpleNamespace(past=None, run=in_memory), None, True),
        (SimpleNamespace(past=None, run=on_disk), None, False),
        (SimpleNamespace(past=None, run=in_memory), SimpleNamespace(users=on_disk), False),
        (SimpleNamespace(past=None, run=in_memory), SimpleNamespace(users=in_memory), True),
    ):
        why = why_one(RUN, served, prerank)  # type: ignore[arg-type]
        assert why == ("" if several else "the run has a Sparse Table, whose reading threads belong to one process")
    assert why_one(DEEP_FFM, SimpleNamespace(past=None), None) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_ports_of_both_kinds_of_addresses_are_reserved(host: str, family: socket.AddressFamily) -> None:
    try:
        socket.create_server((host, 0), family=family).close()
    except OSError:
        pytest.skip("this machine has no addresses of this kind")
    (sock,) = reserved(host, 0)
    assert sock.family == family
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) == 1
    if family == socket.AF_INET6:
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
    sock.close()


def test_shared_memory_counts_in_parts() -> None:
    assert 1 << 20 < memory_of(os.getpid()) < 1 << 40
    assert memory_of(1 << 30) == 0  # there is no such process
