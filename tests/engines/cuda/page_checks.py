"""What the page decoder has to give, on whatever device: bodies of tests; a module that runs them has a fixture `decoder`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctrbox.engines.cuda.parquet_pages import DeviceColumn, PageDecoder
from tests.engines.cuda.page_files import by_the_cpu, chunks, read_back, table

__all__ = [
    "test_damaged_chunks_are_refused_or_give_what_the_cpu_gives",
    "test_decoded_columns_equal_those_of_the_cpu",
]

WRITTEN: list[dict[str, Any]] = [
    {"compression": "NONE"},
    {"compression": "LZ4", "row_group_size": 700, "data_page_size": 900},
    {"compression": "SNAPPY", "data_page_version": "2.0"},
    {"compression": "LZ4", "use_dictionary": False, "data_page_size": 600},
    {"compression": "SNAPPY", "use_dictionary": False, "write_page_checksum": True},
    {"compression": "LZ4", "dictionary_pagesize_limit": 300, "data_page_version": "2.0"},
]


def decoded(decoder: PageDecoder, path: Path, codec: str, nullable: bool) -> list[DeviceColumn | str]:
    _, found = chunks(path, codec, nullable)
    file = os.open(path, os.O_RDONLY)
    try:
        return decoder.decode(file, found)
    finally:
        os.close(file)


@pytest.mark.parametrize("options", WRITTEN, ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items()))
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_decoded_columns_equal_those_of_the_cpu(
    tmp_path: Path, decoder: PageDecoder, options: dict[str, Any], nulls: float
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(1_200, 1, nulls), path, **options)
    codec = options["compression"]
    names, found = chunks(path, codec, True)
    raw = path.read_bytes()
    got = decoded(decoder, path, codec, True)
    for name, mine, parts in zip(names, got, found, strict=True):
        assert isinstance(mine, DeviceColumn), (name, mine)
        want = [row for part in parts for row in by_the_cpu(raw[part.start : part.start + part.size], part) or ()]
        rows = read_back(mine)
        assert rows == want, name
        assert mine.nulls == want.count(None)


def mutated_agree(decoder: PageDecoder, folder: Path, files: int, seed: int) -> tuple[int, int]:
    """Compare both readers over files whose pages were changed at random; columns compared, and refused by both."""
    rng = np.random.default_rng(seed)
    checked = refused = 0
    made = []
    for number, options in enumerate(WRITTEN):
        path = folder / f"{number}.parquet"
        pq.write_table(table(300, number, 0.2), path, **options)
        made.append((chunks(path, options["compression"], True)[1], path.read_bytes()))
    for number in range(files):
        found, whole = made[number % len(made)]
        raw = bytearray(whole)
        for part in (part for parts in found for part in parts):
            for _ in range(int(rng.integers(0, 3))):
                at = part.start + int(rng.integers(0, min(part.size, 200) if rng.random() < 0.5 else part.size))
                raw[at] = int(rng.integers(0, 256)) if rng.random() < 0.7 else raw[at] ^ 1 << int(rng.integers(0, 8))
        changed = folder / "changed.parquet"
        changed.write_bytes(raw)
        file = os.open(changed, os.O_RDONLY)
        try:
            got = decoder.decode(file, found)
        finally:
            os.close(file)
        for mine, parts in zip(got, found, strict=True):
            each = [by_the_cpu(bytes(raw[part.start : part.start + part.size]), part) for part in parts]
            want = None if any(rows is None for rows in each) else [row for rows in each for row in rows or ()]
            assert (read_back(mine) if isinstance(mine, DeviceColumn) else None) == want
            checked += 1
            refused += want is None
    return checked, refused


def test_damaged_chunks_are_refused_or_give_what_the_cpu_gives(tmp_path: Path, decoder: PageDecoder) -> None:
    """The two readers agree about each column chunk, bit by bit."""
    checked, refused = mutated_agree(decoder, tmp_path, 12 if decoder.runtime.threads == 256 else 60, 5)
    assert refused > checked // 10
    assert checked - refused > checked // 10
