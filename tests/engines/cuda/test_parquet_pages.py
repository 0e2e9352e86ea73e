"""The GPU's page decoder, run on the CPU, gives what the CPU's reader gives, and refuses what that refuses."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctrbox import _native
from ctrbox.engines.cuda.parquet_pages import PageDecoder, Turns
from tests.cuda_host import HostRuntime
from tests.engines.cuda.laid_out import laid_out, listed
from tests.engines.cuda.page_checks import *  # noqa: F403  # the test bodies
from tests.engines.cuda.page_checks import WRITTEN
from tests.engines.cuda.page_files import chunks, table


@pytest.fixture(scope="module", params=[1, 256], ids=["one thread a warp", "warps"])
def decoder(request: Any) -> PageDecoder:
    return PageDecoder(HostRuntime(threads=request.param), 1 << 28)


def test_staged_pages_are_laid_out_as_by_numpy(tmp_path: Path) -> None:
    """Whole and damaged files, footers that lie, narrow and missing columns: the same bytes and the same columns."""
    rng = np.random.default_rng(9)
    met = {"whole": 0, "damaged": 0}
    for number in range(120):
        options = WRITTEN[number % len(WRITTEN)]
        path = tmp_path / "a.parquet"
        if number % 20 < len(WRITTEN):
            pq.write_table(table(int(rng.integers(1, 400)), number, 0.2), path, **options)
            whole = path.read_bytes()
            _, found = chunks(path, options["compression"], True)
        changed, columns = bytearray(whole), [list(parts) for parts in found]
        for _ in range(int(rng.integers(0, 5))):
            part = columns[int(rng.integers(len(columns)))][0]
            changed[part.start + int(rng.integers(0, min(part.size, 60)))] = int(rng.integers(0, 256))
        for parts in columns:
            if rng.random() < 0.05:
                wrong = {"size": -3, "start": 1 << 50, "rows": parts[0].rows + 1}
                name = list(wrong)[int(rng.integers(3))]
                parts[0] = parts[0]._replace(**{name: wrong[name]})
            elif rng.random() < 0.2:
                parts[:] = [part._replace(nullable=False) for part in parts]
            elif parts[0].width == 4:
                parts[:] = [part._replace(narrow=2) for part in parts]
        rng.shuffle(columns)  # type: ignore[arg-type]  # lists can be shuffled
        path.write_bytes(changed)
        want = laid_out(columns, listed(bytes(changed), columns))
        staged = _native.StagedPages(columns)
        file = os.open(path, os.O_RDONLY)
        try:
            staged.read(file, np.empty(staged.stored_bytes + 64, np.uint8))
        finally:
            os.close(file)
        assert (staged.pages, staged.shapes) == (len(want.pages), len(want.numbers))
        assert (staged.dictionaries, staged.data) == (len(want.dictionaries), len(want.data))
        assert (staged.held_bytes, staged.between_bytes) == (want.held, want.between)
        assert staged.nullable == bool(want.shapes["nullable"].any())
        bases = [int(base) * 16 for base in rng.integers(0, 1 << 40, 3)]
        got = np.zeros(staged.table_bytes, np.uint8)
        staged.write(got, *bases)
        assert got.tobytes() == want.table(*bases)
        results = np.stack(
            [rng.choice([0, 0, 0, 0, 4], staged.pages), want.pages["values"] - rng.integers(0, 2, staged.pages)], 1
        ).astype(np.uint32)
        results[:, 1] = np.minimum(results[:, 1], want.pages["values"])
        said = staged.outcome(results.view(np.uint8).reshape(-1), bases[1])
        assert said == want.outcome(results, bases[1], len(columns))
        met["damaged" if len(want.numbers) < len(columns) else "whole"] += 1
    assert min(met.values()) > 10


def test_a_footer_of_impossible_sizes_asks_for_no_memory() -> None:
    chunk = (4, 2**63 - 1, 1, 8, True, 10, 0)
    staged = _native.StagedPages([[chunk], [chunk], [chunk]])
    assert staged.stored_bytes == 1 << 62
    with pytest.raises(ValueError, match="do not fit"):
        staged.read(0, np.empty(64, np.uint8))
    for wrong in (
        (0, 0, 3, 8, True, 1, 0),
        (0, 0, 1, 5, True, 1, 0),
        (0, 0, 1, 8, True, 1, 2),
        (0, 0, 1, 4, True, 1, 3),
    ):
        with pytest.raises(ValueError):
            _native.StagedPages([[wrong]])


def test_calls_take_turns_in_the_order_of_their_rows() -> None:
    turns, ran = Turns(1), []

    def call(order: int) -> None:
        with turns.turn(order):
            ran.append(order)

    with turns.turn(0):
        threads = [threading.Thread(target=call, args=(order,)) for order in (5, 3, 9, 1)]
        for thread in threads:
            thread.start()
        while len(turns._waiting) < len(threads):
            time.sleep(0.001)
        assert not ran
    for thread in threads:
        thread.join()
    assert ran == [1, 3, 5, 9]
    with turns.turn(0):
        assert turns._running == 1
    assert turns._running == 0
