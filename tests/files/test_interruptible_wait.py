"""A signal that comes just before the main thread begins to wait for a thread still ends the wait."""

from __future__ import annotations

import ast
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.fs as pafs
import pytest
import torch

import ctrbox as cb
from ctrbox.embed.vectors import encoders
from ctrbox.engines.cuda import staging
from ctrbox.ffm.model_search import Found, learn_all
from ctrbox.files import stored_folder
from ctrbox.files.filesystems import Store
from ctrbox.files.interruptible_wait import (
    TURN_S,
    exit_code_of,
    join,
    result_of,
    results_of,
    taken_from,
    wait_for,
    wait_until,
    wait_until_done,
)
from ctrbox.files.stored_folder import StoredFolder


class Pressed(Exception):
    """The exception that the signal's handler raises."""


@pytest.fixture
def handled() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Pressed

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def signal_another_thread() -> None:
    """Send the signal to a thread that is not the main thread: as when it comes just before the wait, no wait is ended by it."""
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


def test_results_and_errors_are_those_of_the_future() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert result_of(pool.submit(lambda: 3)) == 3
        slow: Future[int] = pool.submit(lambda: time.sleep(2.5 * TURN_S) or 4)
        assert result_of(slow) == 4
        with pytest.raises(ZeroDivisionError):
            result_of(pool.submit(lambda: 1 // 0))


@pytest.mark.parametrize("before_it_is_done", [True, False])
def test_a_timeout_error_of_the_work_is_an_error_and_not_the_end_of_a_turn(before_it_is_done: bool) -> None:
    def work() -> None:
        time.sleep(0.3 * TURN_S if before_it_is_done else 0)
        raise TimeoutError("the server did not answer")

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        if not before_it_is_done:
            future.exception()
        with pytest.raises(TimeoutError, match="did not answer"):
            result_of(future)


def wait_for_a_result(ended: threading.Event) -> None:
    with ThreadPoolExecutor(1) as pool:
        try:
            result_of(pool.submit(ended.wait, 60))
        finally:
            ended.set()


def wait_for_a_thread(ended: threading.Event) -> None:
    thread = threading.Thread(target=ended.wait, args=(60,))
    thread.start()
    try:
        join(thread)
    finally:
        ended.set()
        thread.join()


def wait_for_results(ended: threading.Event) -> None:
    with ThreadPoolExecutor(1) as pool, closing(results_of(pool, lambda _: ended.wait(20), range(3))) as results:  # type: ignore[type-var]
        try:
            list(results)
        finally:
            ended.set()


def wait_for_the_end_of_work(ended: threading.Event) -> None:
    with ThreadPoolExecutor(1) as pool:
        try:
            wait_until_done(pool.submit(ended.wait, 60))
        finally:
            ended.set()


def wait_for_an_event(ended: threading.Event) -> None:
    threading.Timer(60, ended.set).start()
    wait_for(ended)


def wait_for_a_condition(ended: threading.Event) -> None:
    threading.Timer(60, ended.set).start()
    condition = threading.Condition()
    with condition:
        wait_until(condition, ended.is_set)


def wait_for_an_item(ended: threading.Event) -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    late = threading.Timer(60, items.put, (1,))
    late.start()
    try:
        taken_from(items)
    finally:
        late.cancel()


def wait_for_a_process(ended: threading.Event) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        exit_code_of(process)
    finally:
        process.kill()
        process.wait()


# ---- callers, with work that takes long


class Slow(torch.nn.Module):
    """A network that waits for an event unless it runs in the main thread."""

    def __init__(self, ended: threading.Event) -> None:
        super().__init__()
        self.ended = ended

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        wait_unless_main(self.ended)
        return images.flatten(1)[:, :4]


def wait_unless_main(ended: threading.Event) -> None:
    if threading.current_thread() is not threading.main_thread():
        ended.wait(20)


def encode_images(ended: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    encoder = cb.tables.Encoder(Slow(ended), prepare=encoders.Crop(4))
    with ThreadPoolExecutor(2) as pool:
        encoder.encode([torch.zeros(3, 4, 4)] * 3, pool)


def start_encoding_threads(ended: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_num_threads = torch.set_num_threads

    def slow(number: int) -> None:
        wait_unless_main(ended)
        set_num_threads(number)

    monkeypatch.setattr(torch, "set_num_threads", slow)
    encoders.undivided(2)


def copy_to_the_staging_area(ended: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(staging, "_copy_blocks", lambda blocks, lock: wait_unless_main(ended))
    with staging.Staging(2) as area:
        area._fill_together(iter([]))


def search_models(ended: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "train.vw").write_text("1 |user 1\n-1 |user 2\n")
    cache = cb.ffm.ExampleCache.parse(tmp_path / "train.vw", tmp_path / "train.ctrx", fields=["user"])
    model = cb.DeepFFM(["user"], ffm=None, bits=12)
    monkeypatch.setattr(model, "learn", lambda block: ended.wait(20))
    learn_all([Found("lr", {}, model)], cache, 1, lambda examples: None)


def in_a_stored_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StoredFolder:
    store = Store(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "s3://", remote=True)
    monkeypatch.setattr(stored_folder, "open_store", lambda url: (store, url.removeprefix("s3://")))
    (tmp_path / "bucket" / "folder" / "files").mkdir(parents=True, exist_ok=True)
    return StoredFolder("s3://bucket/folder", "a run folder")


def upload_a_folder(ended: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = in_a_stored_folder(monkeypatch, tmp_path)
    (folder.path / "weights").write_text("1 2 3")
    monkeypatch.setattr(StoredFolder, "_upload", lambda self, held, path: ended.wait(20))
    folder.push()


def download_a_folder(ended: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = in_a_stored_folder(monkeypatch, tmp_path)
    (written.path / "weights").write_text("1 2 3")
    written.push()
    folder = in_a_stored_folder(monkeypatch, tmp_path)
    monkeypatch.setattr(StoredFolder, "_fetch", lambda self, name: ended.wait(20))
    folder.pull()


def close_a_table_in_use(ended: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = cb.SparseTable(tmp_path / "table", 2, ram="1MB")

    def use() -> None:
        with table._calling():
            ended.wait(20)

    user = threading.Thread(target=use)
    user.start()
    while not table._under_way:
        time.sleep(0.01)
    try:
        table.close()
    finally:
        user.join()


Caller = Callable[[threading.Event, pytest.MonkeyPatch, Path], None]
CALLERS: list[Caller] = [
    encode_images,
    start_encoding_threads,
    copy_to_the_staging_area,
    search_models,
    upload_a_folder,
    download_a_folder,
    close_a_table_in_use,
]


@pytest.mark.parametrize("call", CALLERS)
def test_a_signal_that_interrupts_no_wait_ends_long_work(
    call: Caller, handled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended, waits = threading.Event(), threading.Event()

    class Ended(threading.Event):
        """Says that a thread has begun to wait for it."""

        def wait(self, seconds: float | None = None) -> bool:
            waits.set()
            return ended.wait(seconds)

    def handler(number: int, frame: FrameType | None) -> None:
        ended.set()  # callers end their threads before they raise the error
        raise Pressed

    def send() -> None:
        if waits.wait(20):
            time.sleep(TURN_S)
            signal_another_thread()

    signal.signal(signal.SIGUSR1, handler)  # `handled` restores the one before
    sender = threading.Thread(target=send)
    sender.start()
    began = time.monotonic()
    with pytest.raises(Pressed):
        call(Ended(), monkeypatch, tmp_path)
    assert time.monotonic() - began < 15
    sender.join()


WAITS = [
    wait_for_a_result,
    wait_for_results,
    wait_for_the_end_of_work,
    wait_for_a_thread,
    wait_for_an_event,
    wait_for_a_condition,
    wait_for_an_item,
    wait_for_a_process,
]


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_that_interrupts_no_wait_is_handled_within_a_few_turns(
    wait: Callable[[threading.Event], Any], handled: None
) -> None:
    """The C part of Python's handler runs in another thread, so the wait of the main thread is not interrupted by it."""
    ended = threading.Event()
    threading.Timer(TURN_S, signal_another_thread).start()
    began = time.monotonic()
    with pytest.raises(Pressed):
        wait(ended)
    assert time.monotonic() - began < 30


def test_results_come_in_order_and_no_item_is_begun_after_an_error() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 2:
            raise ZeroDivisionError
        time.sleep(0.01)
        return item * item

    with ThreadPoolExecutor(1) as pool:
        assert list(results_of(pool, work, [5, 4, 3])) == [25, 16, 9]
        begun.clear()
        with pytest.raises(ZeroDivisionError):
            list(results_of(pool, work, [1, 2, *range(3, 1000)]))
    assert len(begun) < 900


# ---- no other code waits without a limit

CODE = Path(cb.__file__).parent
WAITING = {
    "join",
    "get",
    "wait",
    "result",
    "exception",
    "acquire",
    "communicate",
}  # methods that wait, without arguments

# Calls that look like waits without a limit, and why they may stay.
ALLOWED = {
    "files/interruptible_wait.py: future.result()": "the future is done",
    "views/readahead.py: self.room.wait()": "in a reading thread, which `stop` wakes",
    "ffm/warm_up_sources.py: self._moved.wait()": "in a fetching thread, which `close` wakes",
    "serve/request_queue.py: self._handed.get()": "in a thread of the server, which `drain` ends",
    "embed/vectors/encode_on_gpu.py: self._sent.get()": "in the thread that keeps vectors, which `close` ends",
    "embed/vectors/encode.py: self._moved.wait()": "in the thread that writes the vector file, which `run` wakes",
    "embed/vectors/encoders.py: all_run.wait()": "in an encoding thread, until the others have begun; an error ends it",
    "models/masknet.py: self.map": "a layer of a network",
    "models/task_model.py: self.map": "a layer of a network",
    "embed/vectors/vector_file.py: self.map": "a mapped file",
    "ranks/gpu_table.py: self.batch.wait()": "until a GPU has made a step",
    "train/learn_batch.py: source.full.wait()": "until a GPU has made a step",
    "embed/gpu/gpu_table.py: self._made.wait()": "until a GPU has made a step",
    **dict.fromkeys(
        (
            "ranks/group.py: self.group.allgather([got], [given]).wait()",
            "ranks/group.py: self.group.alltoall_base(got, given, [], []).wait()",
            "ranks/group.py: self.group.alltoall_base(got, given, list(theirs), list(mine)).wait()",
            "ranks/group.py: by.alltoall_base(got, given.to(where), list(theirs), list(mine)).wait()",
            "ranks/group.py: self.nccl.alltoall_base(got, flat, [], []).wait()",
            "ranks/group.py: self.nccl.allgather([got], [mine]).wait()",
            "train/gradient_sums.py: self.group.allgather([gathered], [mine]).wait()",
            "train/gradient_sums.py: self.group.alltoall_base(got, flat.cpu(), [], []).wait()",
            "train/gradient_sums.py: self.group.allgather([gathered], [mine.cpu()]).wait()",
        ),
        "ends after the timeout of the group",
    ),
    **dict.fromkeys(
        (
            "evaluate/metrics.py: cells.result()",
            "evaluate/several_labels.py: scores.result()",
            "ranks/fit.py: scores.result()",
            "sklearn/column_importance.py: scores.result()",
            "train/fit.py: evaluate(self.learner, split, self.batch_size, self.overlap).result()",
            "train/fit.py: scores.result()",
            "train/run.py: score_plan(self.learner, self.plan, batch_size, int(held['start']), int(held['stop'])).result()",
            "train/run.py: score_plan(self.learner, plan, batch_size).result()",
            "train/summary.py: scores.result()",
        ),
        "computes metrics; waits for nothing",
    ),
}


def unlimited_waits(path: Path) -> Iterator[str]:
    """Yield the calls in a file that look like waits without a limit of time, and the uses of ``map`` of an object."""
    tree = ast.parse(path.read_text())
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    futures = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "concurrent.futures"
        for alias in node.names
        if alias.name in ("wait", "as_completed")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "map" and isinstance(node.ctx, ast.Load):
            yield ast.unparse(node)
        if not isinstance(node, ast.Call) or id(node) in awaited:
            continue
        if isinstance(node.func, ast.Name) and node.func.id in futures and len(node.args) + len(node.keywords) < 2:
            yield ast.unparse(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in WAITING and not node.args and not node.keywords:
            yield ast.unparse(node)
        given = len(node.args) + len(node.keywords)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "wait_for" and given < 2:  # without a limit
            yield ast.unparse(node)


def test_no_code_waits_without_a_limit_but_what_is_listed_with_a_reason() -> None:
    """Whatever the main thread waits for, it waits for with `ctrbox.files.interruptible_wait`, and not with a pool's ``map``."""
    found = {
        f"{path.relative_to(CODE)}: {call}" for path in sorted(CODE.rglob("*.py")) for call in unlimited_waits(path)
    }
    assert sorted(found - set(ALLOWED)) == []
    assert sorted(set(ALLOWED) - found) == []  # entries of code that has gone


def test_each_kind_of_unlimited_wait_is_found(tmp_path: Path) -> None:
    code = """
from concurrent.futures import as_completed, wait as all_of
thread.join(); items.get(); future.result(); lock.acquire(); process.communicate(); event.wait(); condition.wait_for(ready)
all_of([future]); as_completed(futures); list(pool.map(work, items))
thread.join(3); event.wait(timeout=3); ", ".join(names); names.get("a"); all_of([future], 3); lock.acquire(timeout=3)
condition.wait_for(ready, 3)
async def f(): await event.wait()
"""
    (tmp_path / "code.py").write_text(code)
    assert sorted(unlimited_waits(tmp_path / "code.py")) == [
        "all_of([future])",
        "as_completed(futures)",
        "condition.wait_for(ready)",
        "event.wait()",
        "future.result()",
        "items.get()",
        "lock.acquire()",
        "pool.map",
        "process.communicate()",
        "thread.join()",
    ]
