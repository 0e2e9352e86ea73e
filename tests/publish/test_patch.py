"""Patches against a twin of plain loops; cut at every byte, bits flipped, lies with a true checksum, wrong bases."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from ctrbox import _native, publish
from ctrbox.errors import BudgetError, CtrboxError, DataError, PlanError, SourceError, WriteError
from ctrbox.publish import patch as patching
from ctrbox.publish.patch import HEAD, REGION, STREAM
from tests.twins import publish as twin

Regions = list[tuple[int, int, int]]
NEAR = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


def octets(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@st.composite
def changes(draw: st.DrawFn) -> tuple[bytes, bytes, int, Regions]:
    """A base and a result that has pieces of it, with few or many changes, and regions that lay them side by side."""
    word = draw(st.sampled_from([1, 2, 4]))
    base = draw(st.binary(max_size=300))
    regions: Regions = []
    count = draw(st.integers(0, 4))
    for n in range(count):
        at = draw(st.integers(0, len(base)))
        held = draw(st.integers(0, len(base) - at))
        size = draw(st.integers(0, 120))
        regions.append((at, held, size if n + 1 == count else size // word * word))
    result = bytearray(twin.beside(base, regions))
    for at in draw(st.lists(st.integers(0, max(0, len(result) - 1)), max_size=30)):
        if result:
            result[at] = draw(st.integers(0, 255))
    return base, bytes(result), word, regions


@NEAR
@example((b"\x00\x01", b"\x00", 2, [(0, 2, 1)]))  # a result that ends within a word of its base
@given(changes())
def test_diff_has_the_twins_bytes_and_apply_gives_the_result(change: tuple[bytes, bytes, int, Regions]) -> None:
    base, result, word, regions = change
    positions, planes, changed = _native.diff(octets(base), octets(result), word, regions)
    expected = twin.diff(base, result, word, regions)
    assert (positions.tobytes(), [p.tobytes() for p in planes], changed) == expected
    assert _native.apply(octets(base), word, regions, positions, planes, len(result)).tobytes() == result


@NEAR
@given(changes(), st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 400))
def test_apply_survives_any_streams(
    change: tuple[bytes, bytes, int, Regions], positions: bytes, values: bytes, size: int
) -> None:
    base, _, word, regions = change
    planes = [octets(values)] * word
    try:
        made = _native.apply(octets(base), word, regions, octets(positions), planes, size)
    except _native.BadPatch:
        return
    assert made.size == size == sum(r[2] for r in regions)


@settings(NEAR, max_examples=40)  # each waits for the disk
@given(base=st.binary(max_size=2000), result=st.binary(max_size=2000), word=st.sampled_from([None, 1, 2, 4]))
def test_any_two_files_are_patched(tmp_path: Path, base: bytes, result: bytes, word: int | None) -> None:
    assume(not base.startswith(b"CTRWGHTS"))  # a damaged weight file is refused
    (tmp_path / "old").write_bytes(base)
    (tmp_path / "new").write_bytes(result)
    facts = publish.diff(tmp_path / "old", tmp_path / "new", tmp_path / "p", word=word)
    assert facts.bytes == (tmp_path / "p").stat().st_size
    assert publish.read_facts(tmp_path / "p") == facts
    publish.apply(tmp_path / "old", tmp_path / "p", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == result
    publish.apply(tmp_path / "old", tmp_path / "p", tmp_path / "old")  # in place
    assert (tmp_path / "old").read_bytes() == result


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    base = random.integers(0, 1000, 5000).astype(np.uint16)
    result = base.copy()
    result[random.integers(0, 5000, 60)] += 3
    (tmp_path / "old").write_bytes(base.tobytes())
    (tmp_path / "new").write_bytes(result.tobytes())
    publish.diff(tmp_path / "old", tmp_path / "new", tmp_path / "p", word=2)
    (tmp_path / "out").write_bytes(b"before")
    return tmp_path


def refused(folder: Path, patch: bytes, **options: int) -> str:
    (folder / "bad").write_bytes(patch)
    with pytest.raises(CtrboxError) as caught:
        publish.apply(folder / "old", folder / "bad", folder / "out", **options)
    assert (folder / "out").read_bytes() == b"before"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_patch_cut_at_every_byte_is_refused(patched: Path) -> None:
    whole = (patched / "p").read_bytes()
    for size in range(len(whole)):
        refused(patched, whole[:size])
    refused(patched, whole + b"\0")
    assert not list(patched.glob(".*"))


def test_single_bit_flips_are_refused(patched: Path) -> None:
    whole = (patched / "p").read_bytes()
    for bit in range(0, 8 * len(whole), max(1, 8 * len(whole) // 300)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        refused(patched, bytes(damaged))
    assert not list(patched.glob(".*"))


def test_every_byte_of_a_forged_patch_with_a_true_checksum_is_refused_or_gives_the_result(patched: Path) -> None:
    """The last checksum can be made by anyone: the reader must survive what is behind it."""
    whole = (patched / "p").read_bytes()[:-32]
    for at in range(len(whole)):
        for value in (1, 255):
            forged = bytearray(whole)
            if forged[at] == value:
                continue
            forged[at] = value
            (patched / "bad").write_bytes(bytes(forged) + hashlib.sha256(forged).digest())
            try:
                publish.apply(patched / "old", patched / "bad", patched / "out")
            except CtrboxError:
                assert (patched / "out").read_bytes() == b"before"
            else:  # a byte nobody reads, such as zstd's own
                assert (patched / "out").read_bytes() == (patched / "new").read_bytes()
                (patched / "out").write_bytes(b"before")


def forged(
    folder: Path,
    *,
    regions: Regions,
    streams: list[tuple[int, bytes]],
    size: int,
    word: int = 2,
    count: int | None = None,
) -> bytes:
    base = (folder / "old").read_bytes()
    head = HEAD.pack(
        b"CTRPATCH", 1, word, len(base), hashlib.sha256(base).digest(), size, bytes(32),
        len(regions) if count is None else count, len(streams),
    )  # fmt: skip
    text = head + b"".join(REGION.pack(*r) for r in regions)
    text += b"".join(STREAM.pack(raw, len(packed)) for raw, packed in streams) + b"".join(p for _, p in streams)
    return text + hashlib.sha256(text).digest()


def test_bombs_are_refused_before_anything_is_unpacked(patched: Path) -> None:
    zstd = pa.Codec("zstd", compression_level=19)
    bomb = zstd.compress(bytes(50 << 20), asbytes=True)
    whole = [(0, 10_000, 10_000)]
    big = 1 << 40
    assert "at most" in refused(patched, forged(patched, regions=[(0, 0, big)], streams=[(0, b"")] * 3, size=big))
    streams = [(50 << 20, bomb), (0, b""), (0, b"")]
    assert "more words than its result" in refused(
        patched, forged(patched, regions=whole, streams=streams, size=10_000)
    )
    streams = [(0, b""), (50 << 20, bomb), (50 << 20, bomb)]
    assert "more words than its result" in refused(
        patched, forged(patched, regions=whole, streams=streams, size=10_000)
    )
    streams = [(2, bomb), (1, bomb), (1, bomb)]  # sizes that lie
    assert "damaged" in refused(patched, forged(patched, regions=whole, streams=streams, size=10_000))
    streams = [(5000, zstd.compress(b"\0\1", asbytes=True)), (1, bomb), (1, bomb)]
    refused(patched, forged(patched, regions=whole, streams=streams, size=10_000))
    assert "contradicts" in refused(
        patched, forged(patched, regions=whole, streams=[(0, b"")] * 3, size=10_000, count=(1 << 32) - 1)
    )
    assert "outside the base" in refused(
        patched, forged(patched, regions=[((1 << 64) - 1, 1 << 63, 10_000)], streams=[(0, b"")] * 3, size=10_000)
    )


def test_a_limit_on_the_result_is_held(patched: Path) -> None:
    with pytest.raises(BudgetError, match=r"10,000 bytes; at most 9,999"):
        publish.apply(patched / "old", patched / "p", patched / "out", most_bytes=9_999)


def test_a_patch_too_large_for_any_result_is_not_even_read(patched: Path) -> None:
    with (patched / "bad").open("wb") as file:
        file.truncate(3 << 30)  # a hole
    with pytest.raises(BudgetError, match="too many for a result"):
        publish.apply(patched / "old", patched / "bad", patched / "out")
    for odd in (patched, Path("/dev/zero")):
        with pytest.raises(SourceError, match="not a regular file"):
            publish.apply(patched / "old", odd, patched / "out")


def test_another_base_is_refused(patched: Path) -> None:
    other = bytearray((patched / "old").read_bytes())
    other[77] ^= 1
    (patched / "other").write_bytes(other)
    with pytest.raises(DataError, match="another file"):
        publish.apply(patched / "other", patched / "p", patched / "out")
    (patched / "other").write_bytes(other[:-2])
    with pytest.raises(DataError, match=r"a file of 10,000 bytes, but .* has 9,998"):
        publish.apply(patched / "other", patched / "p", patched / "out")
    with pytest.raises(DataError, match="not a patch"):
        publish.apply(patched / "old", patched / "new", patched / "out")
    with pytest.raises(SourceError, match="No such file"):
        publish.apply(patched / "none", patched / "p", patched / "out")
    assert (patched / "out").read_bytes() == b"before"


def test_a_newer_version_is_named(patched: Path) -> None:
    whole = bytearray((patched / "p").read_bytes()[:-32])
    whole[8:12] = struct.pack("<I", 2)
    assert "version 2" in refused(patched, bytes(whole) + hashlib.sha256(whole).digest())


def test_words_are_checked(patched: Path) -> None:
    with pytest.raises(PlanError, match="word="):
        publish.diff(patched / "old", patched / "new", patched / "q", word=3)


def test_a_full_disk_leaves_what_was_there(patched: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(WriteError):
        publish.apply(patched / "old", patched / "p", Path("/dev/full"))
    assert (patched / "new").exists()


def sealed(text: bytes) -> bytes:
    return text + hashlib.sha256(text).digest()


def test_a_patch_whose_streams_do_not_fill_it_is_refused(patched: Path) -> None:
    whole = (patched / "p").read_bytes()[:-32]
    assert "contradicts itself: its streams do not add up to its size" in refused(patched, sealed(whole + b"x"))
    assert "contradicts itself: its streams do not add up to its size" in refused(patched, sealed(whole[:-1]))


@pytest.mark.parametrize(
    ("positions", "values", "told"),
    [
        (
            5_032,
            (5_000, 5_000),
            "damaged: a stream cannot be decompressed",
        ),  # as much as a result of 5,000 words may have
        (5_033, (5_000, 5_000), "it changes more words than its result has"),
        (5_032, (5_001, 5_001), "it changes more words than its result has"),
        (0, (1, 2), "it changes more words than its result has"),
        (0, (2, 1), "it changes more words than its result has"),
    ],
)
def test_sizes_of_streams_are_held_against_the_result(
    patched: Path, positions: int, values: tuple[int, int], told: str
) -> None:
    streams = [(positions, b"no zstd"), *((size, b"no zstd") for size in values)]
    assert told in refused(patched, forged(patched, regions=[(0, 10_000, 10_000)], streams=streams, size=10_000))


@pytest.mark.parametrize(("word", "streams"), [(3, 4), (2, 2), (2, 4), (8, 9), (0, 1)])
def test_words_and_streams_must_agree(patched: Path, word: int, streams: int) -> None:
    made = forged(patched, regions=[(0, 0, 0)], streams=[(0, b"")] * streams, size=0, word=word)
    assert f"contradicts itself: 1 regions, {streams} streams, words of {word} bytes" in refused(patched, made)


@pytest.mark.parametrize(("growth", "limit"), [(100, 20_000), (50_000, 60_000)])
def test_a_result_may_be_twice_its_base_or_so_much_larger(
    patched: Path, growth: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patching, "GROWTH", growth)
    for size in (limit, limit + 1):
        (patched / "new").write_bytes(bytes(size))
        publish.diff(patched / "old", patched / "new", patched / "p")
        if size == limit:
            publish.apply(patched / "old", patched / "p", patched / "made")
            assert (patched / "made").read_bytes() == bytes(size)
        else:
            with pytest.raises(BudgetError, match=f"{size:,} bytes; at most {limit:,} bytes are allowed"):
                publish.apply(patched / "old", patched / "p", patched / "out")


def test_a_patch_may_take_twice_its_result_and_some_room(patched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (patched / "p").stat().st_size
    monkeypatch.setattr(patching, "ROOM", size - 2 * 10_000)
    publish.apply(patched / "old", patched / "p", patched / "made", most_bytes=10_000)
    monkeypatch.setattr(patching, "ROOM", size - 2 * 10_000 - 1)
    with pytest.raises(BudgetError, match=f"has {size:,} bytes, too many for a result of at most 10,000"):
        publish.apply(patched / "old", patched / "p", patched / "out", most_bytes=10_000)


def test_more_regions_than_a_patch_may_have_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("old", 1.0), ("new", 2.0)):
        parts = [publish.Part.floats(part, np.full(50, value, np.float32)) for part in "abc"]
        publish.write_weights(tmp_path / name, publish.Weights("test", {}, parts), quantize=False)
    for most, regions in ((4, 4), (3, 1)):
        monkeypatch.setattr(patching, "MOST_REGIONS", most)
        facts = publish.diff(tmp_path / "old", tmp_path / "new", tmp_path / "p")
        assert facts.word == 4
        assert HEAD.unpack((tmp_path / "p").read_bytes()[: HEAD.size])[7] == regions
        publish.apply(tmp_path / "old", tmp_path / "p", tmp_path / "made")
        assert (tmp_path / "made").read_bytes() == (tmp_path / "new").read_bytes()


def test_words_are_as_wide_as_most_of_the_weights(tmp_path: Path) -> None:
    """Codes of 16 bits are compared by 2 bytes, floats by 4; where both are there, the larger half decides."""
    for codes, floats, word in ((400, 0, 2), (0, 400, 4), (400, 10, 2), (10, 400, 4)):
        for name, seed in (("old", 1), ("new", 2)):
            random = np.random.default_rng(seed)
            parts = [
                publish.Part.floats("codes", random.random(codes, np.float32)),
                publish.Part("floats", "U8", (4 * floats,), random.integers(0, 255, 4 * floats).astype(np.uint8)),
            ]
            publish.write_weights(tmp_path / name, publish.Weights("test", {}, parts))
        assert publish.diff(tmp_path / "old", tmp_path / "new", tmp_path / "p").word == word
