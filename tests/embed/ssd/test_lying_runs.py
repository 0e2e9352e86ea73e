"""Segments of a Sparse Table byte by byte, and files whose checksums are true and whose runs are not: each lie is told."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from ctrbox.errors import SourceError
from tests.twins.checked_file import WORD, checksum, finish, sealed, unsealed
from tests.twins.unique_keys import shard

PAGE, FLOATS = 4096, 4
ROOM = (PAGE - 16) // (12 + 4 * FLOATS)  # rows of a page
FACTS = "<4Q4I2Q"
SHARD = 5


def of_one_shard(count: int) -> np.ndarray:
    """Keys of one shard, in the order of their mixes."""
    found = [key for key in range(1, 200 * count) if shard(key) == SHARD][:count]
    assert len(found) == count
    return np.array(sorted(found, key=finish))


@dataclass
class Run:
    """The only run of a table, with what its manifest says of it."""

    folder: Path
    blocks: list[bytes]  # of the manifest

    @classmethod
    def of(cls, folder: Path) -> Run:
        whole = (folder / "MANIFEST").read_bytes()
        return cls(folder, unsealed(whole, [12, 136, 32, *(8 + 64 * (n == SHARD) for n in range(64))]))

    @property
    def facts(self) -> dict[str, int]:
        names = ("segment", "offset", "rows", "footer_bytes", "pages", "newest", "hashes", "straddles", "fence_words")
        return dict(zip((*names, "filter_words"), struct.unpack_from(FACTS, self.blocks[3 + SHARD], 8), strict=True))

    @property
    def path(self) -> Path:
        return self.folder / "segments" / f"{self.facts['segment']:010}.seg"

    def lie(self, **changes: int) -> None:
        facts = {**self.facts, **changes}
        blocks = list(self.blocks)
        blocks[3 + SHARD] = struct.pack("<Q", 1) + struct.pack(FACTS, *facts.values())
        (self.folder / "MANIFEST").write_bytes(sealed(blocks))

    def forge(self, change: Callable[[bytearray], None], page: int = 0) -> None:
        """Change a page, or the footer behind the pages, and give it its true checksum."""
        facts, data = self.facts, bytearray(self.path.read_bytes())
        begin = page * PAGE
        end = begin + PAGE if page < facts["pages"] else len(data)
        part = data[begin:end]
        change(part)
        seal = checksum(bytes(part[8:]), finish(facts["segment"]) ^ (facts["offset"] + begin))
        if page == facts["pages"]:
            seal ^= finish(facts["rows"])
        data[begin:end] = struct.pack("<Q", seal) + part[8:]
        self.path.write_bytes(data)


def opened(folder: Path) -> cb.SparseTable:
    return cb.SparseTable.load(folder, ram="1MB", threads=1, read_only=True)


def refused(folder: Path) -> str:
    """Return the error about a table that cannot be opened, without the part that all such errors share."""
    with pytest.raises(SourceError) as told:
        opened(folder)
    said = str(told.value)
    assert said.startswith(f"the table in {folder} is damaged: ")
    return said.removesuffix("; repair it from a saved copy with cb.tables.repair")


def made(folder: Path, keys: np.ndarray) -> Run:
    with cb.SparseTable(folder, 2, ram="1MB", threads=1, seed=3) as table:
        table.pull(keys)
        table.checkpoint()
    return Run.of(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "t"
    made(folder, of_one_shard(ROOM + 10))
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Run:
    shutil.copytree(saved, tmp_path / "t")
    return Run.of(tmp_path / "t")


def filter_of(mixes: list[int], words: int, hashes: int) -> bytes:
    """A blocked Bloom filter, one bit a word from a first word on, around the block of eight."""
    found = [0] * words
    for mix in mixes:
        block = ((mix * 0x9E3779B97F4A7C15 & WORD) >> 32) * (words // 8) >> 32
        bits = (mix ^ mix >> 32) * 0xD1B54A32D192ED03 & WORD
        word, bits = bits >> 61, bits << 3 & WORD
        for k in range(hashes):
            found[8 * block + (word + k) % 8] |= 1 << (bits >> 58)
            bits = bits << 6 & WORD
    return struct.pack(f"<{words}Q", *found)


@pytest.mark.parametrize("count", [1, 2, ROOM - 1, ROOM, ROOM + 1, 2 * ROOM, 2 * ROOM + 1])
def test_a_run_is_pages_of_rows_and_a_footer(tmp_path: Path, count: int) -> None:
    keys = of_one_shard(count)
    run = made(tmp_path / "t", keys)
    pages = -(-count // ROOM)
    facts = run.facts
    words = facts["filter_words"]
    fences = [finish(int(key)) << 6 >> 32 & 0xFFFFFFFF for key in keys[::ROOM]]
    footer_bytes = -(-8 * (1 + (pages + 1) // 2 + words) // PAGE) * PAGE
    assert facts == {
        "segment": facts["segment"], "offset": 0, "rows": count, "footer_bytes": footer_bytes, "pages": pages, "newest": 1,
        "hashes": facts["hashes"], "straddles": 0, "fence_words": (pages + 1) // 2, "filter_words": words,
    }  # fmt: skip
    with opened(tmp_path / "t") as table:
        values = table._native.read(keys)
    expected = b""
    stamps = set()
    octets = run.path.read_bytes()
    for page in range(pages):
        here, rows = keys[page * ROOM : (page + 1) * ROOM], values[page * ROOM : (page + 1) * ROOM]
        stamp = octets[page * PAGE + 16 + 8 * ROOM :][: 4 * len(here)]
        stamps |= set(struct.unpack(f"<{len(here)}I", stamp))
        body = struct.pack("<II", len(here), 0) + here.astype("<i8").tobytes().ljust(8 * ROOM, b"\0")
        body += stamp.ljust(4 * ROOM, b"\0") + rows.astype("<f4").tobytes()
        body = body.ljust(PAGE - 8, b"\0")
        expected += struct.pack("<Q", checksum(body, finish(facts["segment"]) ^ len(expected))) + body
    footer = struct.pack(f"<{pages}I", *fences).ljust(8 * ((pages + 1) // 2), b"\0")
    footer = (footer + filter_of([finish(int(k)) for k in keys], words, facts["hashes"])).ljust(footer_bytes - 8, b"\0")
    seal = checksum(footer, finish(facts["segment"]) ^ len(expected)) ^ finish(count)
    assert octets == expected + struct.pack("<Q", seal) + footer
    assert {stamp & (1 << 28) - 1 for stamp in stamps} == {1}
    assert all(1 <= stamp >> 28 <= 15 for stamp in stamps)


IMPOSSIBLE = "MANIFEST names an impossible run: segment "


@pytest.mark.parametrize(
    "change",
    [
        {"fence_words": 0},
        {"fence_words": 2},
        {"pages": 3},
        {"filter_words": 9},
        {"filter_words": (1 << 35) + 8},
        {"filter_words": 1 << 20},
        {"hashes": 0},
        {"hashes": 11},
        {"footer_bytes": 0},
        {"footer_bytes": 2 * PAGE},
        {"rows": 2 * ROOM + 1},
        {"offset": (1 << 62) + 1},
    ],
)
def test_a_run_that_cannot_be_is_refused(run: Run, change: dict[str, int]) -> None:
    run.lie(**change)
    assert refused(run.folder).endswith(f"{IMPOSSIBLE}{run.facts['segment']}")


def test_a_run_at_its_bounds_is_refused_for_what_is_wrong_with_it(run: Run) -> None:
    size = run.path.stat().st_size
    for change, says in (
        ({"rows": 2 * ROOM}, f"at byte {2 * PAGE}: the checksum of a run's footer is wrong"),
        ({"offset": 1 << 62}, f"has {size} bytes, expected {(1 << 62) + size}"),
        ({"offset": 1}, f"has {size} bytes, expected {size + 1}"),
        ({"segment": 77}, "0000000077.seg is missing"),
    ):
        run.lie(**change)
        assert refused(run.folder).endswith(says)


def test_a_run_without_a_filter_has_all_of_its_rows(run: Run) -> None:
    keys = of_one_shard(ROOM + 10)
    with opened(run.folder) as table:
        values = table.pull(keys, create=False)
        assert table.verify() == []
    run.lie(filter_words=0, hashes=0)
    with opened(run.folder) as table:
        assert table.pull(keys, create=False).tobytes() == values.tobytes()
        assert table.verify() == []


@pytest.mark.parametrize("hashes", [1, 10])
def test_another_number_of_hashes_is_possible(run: Run, hashes: int) -> None:
    run.lie(hashes=hashes)
    with opened(run.folder) as table:
        assert (table.verify() == []) == (hashes == 1)


def swapped(page: bytearray) -> None:
    page[16:24], page[24:32] = page[24:32], page[16:24]


def of_another_shard(page: bytearray) -> None:
    key = next(k for k in range(1, 1000) if shard(k) == SHARD + 1 and finish(k))
    page[16 + 8 * 9 : 24 + 8 * 9] = struct.pack("<q", key)


def rows(count: int) -> Callable[[bytearray], None]:
    def change(page: bytearray) -> None:
        page[8:12] = struct.pack("<I", count)

    return change


@pytest.mark.parametrize(
    ("page", "change", "says"),
    [
        (0, lambda page: None, []),
        (0, swapped, ["at byte 0: keys out of order"]),
        (1, swapped, [f"at byte {PAGE}: keys out of order"]),
        (1, of_another_shard, [f"at byte {PAGE}: keys out of order"]),
        (0, rows(ROOM + 1), ["at byte 0: the checksum of a page is wrong (shard 5)"]),
        (0, rows(ROOM - 1), [f": a run has {ROOM + 9} rows, expected {ROOM + 10}"]),
        (1, rows(9), [f": a run has {ROOM + 9} rows, expected {ROOM + 10}"]),
        (1, rows(0), [f": a run has {ROOM} rows, expected {ROOM + 10}"]),
    ],
)
def test_what_is_wrong_within_a_run_is_told_by_verify(
    run: Run, page: int, change: Callable[[bytearray], None], says: list[str]
) -> None:
    run.forge(change, page)
    with opened(run.folder) as table:
        found = table.verify()
    assert [line.removeprefix(str(run.path)).removeprefix(" ") for line in found] == says


def test_a_footer_that_changed_since_it_was_opened_is_told_by_verify(run: Run) -> None:
    with opened(run.folder) as table:
        octets = bytearray(run.path.read_bytes())
        for at in (2 * PAGE, 2 * PAGE + 8, len(octets) - 1):
            changed = bytearray(octets)
            changed[at] ^= 1
            run.path.write_bytes(changed)
            assert table.verify() == [f"{run.path} at byte {2 * PAGE}: the checksum of a run's footer is wrong"]
        run.path.write_bytes(octets)
        assert table.verify() == []
