"""The access log alone: what a line has, a file that is renamed or full, and when the log looks after its file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrbox.serve import access_log as module
from ctrbox.serve.access_log import AccessLog


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = SimpleNamespace(now=50.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_candidates_and_a_trace_where_there_are_some(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "log")
    log.add("c", "GET", "/" + "x" * 300, 404, 0.0012345678, 7)
    log.add("c", "POST", "/v1/score", 200, 0.5, 61, 2, 9, "abc")
    log.close()
    plain, scored = lines(tmp_path / "log")
    assert plain.pop("time").endswith("Z")
    path = "/" + "x" * 199
    assert plain == {"client": "c", "method": "GET", "path": path, "status": 404, "ms": 1.235, "bytes": 7}
    assert {k: scored[k] for k in ("ms", "candidates", "version", "trace")} == {
        "ms": 500.0,
        "candidates": 2,
        "version": 9,
        "trace": "abc",
    }


def test_a_file_that_was_renamed_or_removed_is_replaced_within_a_second(tmp_path: Path, clock: Any) -> None:
    path, old = tmp_path / "log", tmp_path / "old"
    log = AccessLog(path)

    def add(name: str) -> None:
        log.add("c", "GET", name, 200, 0.0, 0)

    add("a")
    path.rename(old)
    clock.now += 0.5
    add("b")
    clock.now += 0.5
    add("c")
    assert [[line["path"] for line in lines(one)] for one in (old, path)] == [["a", "b"], ["c"]]
    path.rename(old)
    path.write_text("")  # another file of this name
    clock.now += 0.5
    add("d")
    clock.now += 0.5
    add("e")
    assert [[line["path"] for line in lines(one)] for one in (old, path)] == [["c", "d"], ["e"]]
    handle = log._file
    clock.now += 5.0
    add("f")
    assert log._file == handle  # the same file: nothing is opened
    log.close()


def test_a_closed_log_ignores_lines_and_writes_to_no_file_that_took_its_number(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "log")
    log.add("c", "GET", "/a", 200, 0.0, 0)
    handle = log._file
    log.close()
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    assert other == handle  # the lowest free number
    log.add("c", "GET", "/b", 200, 0.0, 0)
    log.close()
    os.close(other)  # raises an error if `log.close` closed it
    assert (tmp_path / "other").read_bytes() == b""
    assert [line["path"] for line in lines(tmp_path / "log")] == ["/a"]


def test_lost_lines_are_told_once_until_one_is_written(
    tmp_path: Path, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AccessLog(folder / "log")
    for _ in range(2):
        (folder / "log").unlink()
        folder.rmdir()
        for _ in range(3):
            clock.now += 1.0
            log.add("c", "GET", "/", 200, 0.0, 0)
        folder.mkdir()
        clock.now += 1.0
        log.add("c", "GET", "/", 200, 0.0, 0)
        assert len(lines(folder / "log")) == 1
    log.close()
    lost = f"a line of the access log was lost: cannot write the access log {folder}/log: No such file or directory"
    assert caplog.messages == [lost, lost]
