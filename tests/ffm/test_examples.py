"""Text and its cache: every line as a plain split reads it, bad ones counted and named, damage noticed."""

from __future__ import annotations

import gzip
import io
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.errors import SourceError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.ffm.examples_from_text_or_cache import ExampleCache, ExampleText
from tests.twins import example_text as twin
from tests.twins.deep_ffm import rows_of

PIECES = [
    "1", "-1", "0", "2", "nan", "inf", "1e999", "1e-999", "|", "|a", "|b:2", "|ad:x", "|c:0.5", "'tag", "tag|a", "x", "y:0.5",
    "z:", ":3",
    "x:1:2", "y:nan", "q:-3e38", "|s:1e10", "é", "\0", "1:2:3", "f:g:h", "f:g:0.25", "::", "+1", "1_0", "0x1", "\t", "\r",
]  # fmt: skip


def parse_all(
    text: bytes, libffm: bool = False, **options: list[str]
) -> tuple[_native.ExampleParser, _native.Examples]:
    parser = _native.ExampleParser(libffm, options.get("fields", []), options.get("ignored", []))
    parser.feed(text)
    return parser, parser.take()


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=9).map(" ".join), max_size=8), st.booleans())
@settings(max_examples=400, deadline=None)
def test_lines_read_as_a_plain_split_reads_them(text: list[str], libffm: bool) -> None:
    parser, examples = parse_all("\n".join(text).encode(), libffm)
    fields: list[str] = []
    expected, bad = [], []
    for number, line in enumerate(text, 1):
        if not line.strip(" \t\r"):
            continue
        try:
            label, weight, features = (twin.libffm if libffm else twin.vw)(line)
        except Exception:
            bad.append(number)
            features = None
        # Names are numbered as they are met, also on a line that turns out bad: only good lines are compared by name.
        if features is not None:
            expected.append((label, weight, features))
    fields = list(parser.fields)
    assert parser.bad == len(bad)
    assert [line for line, _ in parser.first_bad] == bad[:10]
    met = rows_of(examples)
    assert len(met) == len(expected)
    for (found, label, weight), (wanted_label, wanted_weight, wanted) in zip(met, expected, strict=True):
        assert label == wanted_label or (math.isnan(label) and math.isnan(wanted_label))
        assert weight == wanted_weight
        wanted = sorted((f for f in wanted if f[2] != 0), key=lambda f: fields.index(f[0]))
        assert [(n, k, float(v)) for n, k, v in found] == [
            (fields.index(f), twin.key_of(f, n), v) for f, n, v in wanted
        ]


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_counted(text: bytes, libffm: bool) -> None:
    parser, examples = parse_all(text, libffm)
    full = [line for line in text.split(b"\n") if line.strip(b" \t\r")]
    assert examples.rows + parser.bad == len(full)
    assert len(parser.first_bad) == min(10, parser.bad)


GOOD = b"1 2 |a x y:0.5 |b z\n-1 |b z |a q\n\n0 'tag|a x\n"


def test_bad_lines_are_counted_and_the_first_ten_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD + b"".join(b"1 |a x:oops%d\n" % n for n in range(12)) + b"1 |typo x\n" + GOOD
    source = tmp_path / "t.vw"
    source.write_bytes(text)
    cache = ExampleCache.parse(source, tmp_path / "t.ctrx", fields=["a", "b"])
    assert (cache.rows, cache.bad) == (6, 13)
    told = capsys.readouterr().err
    assert "13 of 21 lines left out: line 5: value 'oops0' is no number" in told
    assert "line 14" in told
    assert "line 15" not in told
    with pytest.raises(cb.errors.DataError, match=r"t\.vw, line 5: value 'oops0'"):
        ExampleCache.parse(source, tmp_path / "strict.ctrx", fields=["a", "b"], strict=True)
    assert not (tmp_path / "strict.ctrx").exists()
    _, met = parse_all(b"1 |typo x |a y\n", fields=["a"], ignored=["typo"])
    assert met.features == 1
    typo = ExampleText(io.BytesIO(b"1 |usr x |a y\n"), fields=["a", "user"])
    assert sum(part.rows for part in typo) == 0
    assert typo.first_bad == [(1, "namespace 'usr' is none of the fields; nearest: 'user'")]


def columns(examples: _native.Examples) -> list[bytes]:
    names = ("offsets", "keys", "fields", "values", "labels", "weights")
    return [getattr(examples, name).tobytes() for name in names]


@pytest.mark.parametrize("libffm", [False, True])
def test_a_cache_gives_back_what_was_parsed(tmp_path: Path, libffm: bool) -> None:
    random = np.random.default_rng(0)
    rows = []
    for _ in range(3000):
        picked = random.integers(0, 300, random.integers(0, 6))
        features = [f"{n}:v{n}:{1 + n % 3}" if libffm else f"|n{n} v{n}:{1 + n % 3}" for n in picked]
        rows.append(" ".join(["1" if random.random() < 0.3 else "0", *(features or ([] if libffm else ["|n0"]))]))
    text = "\n".join(rows).encode()
    _, expected = parse_all(text, libffm)
    cache = ExampleCache.parse(io.BytesIO(text), tmp_path / "c.ctrx", format="libffm" if libffm else "vw")
    (met,) = list(cache)
    assert columns(met) == columns(expected)
    assert len(cache.fields) > 256  # numbered with two bytes


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", "-"])
def test_compressed_text_and_stdin(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GOOD * 2000
    path: str | Path = tmp_path / f"t.vw{suffix}"
    if suffix == "-":
        path = "-"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    elif suffix == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(text)
    else:
        Path(path).write_bytes(gzip.compress(text) if suffix else text)
    cache = ExampleCache.parse(path, tmp_path / "c.ctrx")
    assert cache.rows == 6000
    if suffix == ".gz":
        Path(path).write_bytes(gzip.compress(text)[:-30])
        with pytest.raises(cb.errors.SourceError, match=r"t\.vw\.gz"):
            ExampleCache.parse(path, tmp_path / "cut.ctrx")
        assert not (tmp_path / "cut.ctrx").exists()


def test_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c.ctrx"
    ExampleCache.parse(io.BytesIO(GOOD * 3), path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 3):
        path.write_bytes(whole[:cut])
        with pytest.raises(cb.errors.SourceError, match=r"c\.ctrx"):
            list(ExampleCache(path))
    for bit in range(0, 8 * len(whole), 11):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(cb.errors.SourceError, match=r"c\.ctrx"):
            list(ExampleCache(path))
    with pytest.raises(cb.errors.SourceError, match="No such file"):
        ExampleCache(tmp_path / "none")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_text_that_changes_between_epochs_or_within_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"t.vw{suffix}"
    written = gzip.compress(GOOD * 500, mtime=0) if suffix else GOOD * 500
    path.write_bytes(written)
    monkeypatch.setattr("ctrbox.ffm.examples_from_text_or_cache.READ", 1000)
    monkeypatch.setattr("ctrbox.ffm.examples_from_text_or_cache.BLOCK_ROWS", 10)
    text = ExampleText(path)
    assert sum(block.rows for block in text) == 1500
    begun = iter(text)
    next(begun)
    if not suffix:  # the small compressed file was read whole by now
        path.write_bytes(written)
        with pytest.raises(cb.errors.SourceError, match=r"t\.vw changed after it was opened"):
            list(begun)
    path.write_bytes(written)
    for other in (text, text.over(["a", "b"])):
        with pytest.raises(cb.errors.SourceError, match=r"t\.vw.* changed after it was opened"):
            list(other)


@pytest.mark.parametrize("cores", [1, 2, 9])
def test_blocks_of_a_cache_come_in_order_on_any_number_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    lines = [f"{n % 2} |a x{n} |b y{n % 7}:0.5 z\n" for n in range(3_000)]
    lines[2_000:2_000] = [f"1 |a x |late w{n}\n" for n in range(40)]  # a field that later blocks bring
    (tmp_path / "t.vw").write_text("".join(lines))
    monkeypatch.setattr("ctrbox.ffm.examples_from_text_or_cache.READ", 1000)
    monkeypatch.setattr("ctrbox.ffm.examples_from_text_or_cache.BLOCK_ROWS", 10)
    monkeypatch.setattr("ctrbox._native.usable_cores", lambda: cores)
    cache = ExampleCache.parse(tmp_path / "t.vw", tmp_path / "c.ctrx")
    blocks = list(cache.blocks())
    whole = _native.ExampleParser(False, ["a", "b", "late"], [])
    whole.feed("".join(lines).encode())
    expected = whole.take()
    assert len(blocks) > 20
    assert np.concatenate([b.keys for b, _ in blocks]).tobytes() == expected.keys.tobytes()
    assert np.concatenate([b.labels for b, _ in blocks]).tobytes() == expected.labels.tobytes()
    assert blocks[0][1] == ["a", "b"]
    assert blocks[-1][1] == ["a", "b", "late"]
    first = next(iter(cache))  # the others are not waited for
    assert first.keys.tobytes() == blocks[0][0].keys.tobytes()


def test_cache_that_is_replaced_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.vw").write_bytes(GOOD * 500)
    path = tmp_path / "c.ctrx"
    cache = ExampleCache.parse(tmp_path / "t.vw", path)
    assert cache.rows == 1500
    ExampleCache.parse(tmp_path / "t.vw", path)
    with pytest.raises(cb.errors.SourceError, match=r"c\.ctrx changed after it was opened"):
        list(cache)
    assert ExampleCache(path).rows == 1500


def test_models_read_caches_and_text_by_the_names_of_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.vw"
    path.write_bytes(GOOD * 50)
    cache = ExampleCache.parse(path, tmp_path / "c.ctrx")
    model = DeepFFM(cache, bits=10)
    assert model.fields == ["a", "b"]
    model.learn(cache)
    assert model.learned == cache.rows == 150
    turned = DeepFFM(["b", "a", "more"], bits=10)
    turned.learn(cache)
    from_text = DeepFFM(["b", "a", "more"], bits=10)
    from_text.learn(ExampleText(path))
    assert from_text.predict(cache).tobytes() == turned.predict(ExampleText(path)).tobytes()
    with pytest.raises(cb.errors.DataError, match="has field 'a', which this model does not have"):
        DeepFFM(["b", "aa"], bits=10).learn(cache)
    path.write_bytes(GOOD + b"oops\n")
    from_text.learn(ExampleText(path))
    assert "1 of 5 lines left out: line 5: no | in it" in capsys.readouterr().err
    unlabeled = ExampleText(io.BytesIO(b"|a x |b y\n"), fields=["a", "b"])
    assert len(model.predict(unlabeled)) == 1
    with pytest.raises(cb.errors.DataError, match="no label"):
        model.learn(ExampleText(io.BytesIO(b"|a x |b y\n"), fields=["a", "b"]))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(cb.errors.SourceError, match="cannot read"):
        ExampleCache.parse(tmp_path / "none.vw", tmp_path / "c.ctrx")
    with pytest.raises(cb.errors.DataError, match="holds no examples"):
        ExampleCache.parse(io.BytesIO(b"\n\n"), tmp_path / "c.ctrx")
    with pytest.raises(cb.errors.DataError, match=r"line 1: no \| in it"):
        ExampleCache.parse(io.BytesIO(b"hello"), tmp_path / "c.ctrx")
    with pytest.raises(cb.errors.DataError, match="longer than"):
        ExampleCache.parse(io.BytesIO(b"1 |a " + b"x" * (20 << 20)), tmp_path / "c.ctrx")
    with pytest.raises(cb.errors.PlanError, match="nearest: 'libffm'"):
        ExampleText("x", format="libfm")  # type: ignore[arg-type]
    with pytest.raises(cb.errors.PlanError, match="binary mode"):
        list(ExampleText(io.StringIO("1 |a x")))  # type: ignore[arg-type]
    with pytest.raises(cb.errors.PlanError, match="'a' is both in fields= and in ignore=; remove it from one of them"):
        ExampleText("x", fields=["a"], ignore=["a"])
    assert not (tmp_path / "c.ctrx").exists()


@pytest.mark.parametrize("kind", [ExampleText, ExampleCache])
def test_a_file_that_is_not_there_is_named_with_the_reason(tmp_path: Path, kind: type) -> None:
    with pytest.raises(SourceError) as caught:
        list(kind(tmp_path / "none.vw"))
    assert str(caught.value) == f"cannot read {tmp_path / 'none.vw'}: No such file or directory"


def test_lines_without_a_prediction_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "t.vw"
    source.write_bytes(b"1 |a x |b y\n1 |typo x\n0 |a z |b y\n")
    model = cb.DeepFFM(["b", "a"], bits=8)
    for fields in (["b", "a"], ["a", "b"], None):  # all but the first are read for the fields of the model
        rows = ExampleText(source, fields=fields)
        assert len(model.predict(rows)) == 2
        assert (rows.lines, rows.bad) == (3, 1)
        assert [line for line, _ in rows.first_bad] == [2]
        told = f"{source}: 1 of 3 lines left out: line 2: namespace 'typo' is none of the fields"
        assert capsys.readouterr().err.startswith(told)
