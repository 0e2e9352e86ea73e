"""Online learning by direct calls: figures of windows, text and names of fields, pieces of chunks, a search's table."""

from __future__ import annotations

import io
import math
import re
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError
from ctrbox.ffm import examples_from_text_or_cache as examples_module
from ctrbox.ffm import model_search
from ctrbox.ffm.examples_from_text_or_cache import checked_interactions, crossings, names, whole_lines
from ctrbox.ffm.model_search import Found, Results, grid, short
from ctrbox.ffm.progressive_validation import HEAD, Progress, Sums, Window, auc, entropy, total
from ctrbox.loop import chunk_decoder as chunk_module
from ctrbox.loop import nats_stream
from ctrbox.loop.chunk_decoder import pieces, row_of_line
from ctrbox.loop.decode_events import Layout

F = np.float32


# ---- figures of windows


def test_the_figures_of_a_window_are_those_of_its_examples() -> None:
    shown: list[str] = []
    progress = Progress(2, shown.append)
    labels, predictions = np.array([1, 0, 1], F), np.array([0.5, 0.25, 0.75], F)
    weights = np.array([1, 3, 1], F)
    progress.add(labels, predictions, weights)
    first = progress.windows[0]
    losses = [-math.log(0.5), -math.log(0.75), -math.log(0.75)]
    assert len(progress.windows) == 1
    assert (first.examples, first.auc, first.weighted_auc) == (2, 1.0, 1.0)
    assert first.loss == first.average == pytest.approx((losses[0] + losses[1]) / 2)
    assert first.weighted_loss == pytest.approx((losses[0] + 3 * losses[1]) / 4)
    assert (first.predicted, first.clicked) == (0.375, 0.5)
    assert (first.weighted_predicted, first.weighted_clicked) == ((0.5 + 0.75) / 4, 0.25)
    assert first.constant == pytest.approx(math.log(2))
    assert progress.loss == pytest.approx(sum(losses) / 3)
    assert progress.weighted_loss == pytest.approx((losses[0] + 3 * losses[1] + losses[2]) / 5)
    assert (progress.examples, progress.clicks, progress.auc_examples) == (3, 2, 2)
    assert progress.constant == pytest.approx(entropy(2 / 3))
    assert (progress.calibration, progress.weighted_calibration) == ((0.375, 0.5), (0.3125, 0.25))
    progress.add(labels[:1], predictions[:1])
    second = progress.windows[1]
    assert second.loss == pytest.approx((losses[2] + losses[0]) / 2)  # of this window alone
    assert second.average == pytest.approx((sum(losses) + losses[0]) / 4)
    assert math.isnan(second.auc)  # clicks alone
    for _ in range(4):
        progress.add(labels[:1], predictions[:1])
    assert len(progress.windows) == 4
    assert shown == [HEAD, str(first), str(second), str(progress.windows[3])]  # windows 1, 2 and 4
    assert progress.table().splitlines() == [*HEAD.splitlines(), *map(str, progress.windows)]


def test_before_a_whole_window_the_figures_are_of_all() -> None:
    progress = Progress(100)
    progress.add(np.array([1, 0, 0], F), np.array([0.5, 0.5, 0.25], F), np.array([], F))
    assert (progress.auc, progress.auc_examples) == (0.75, 3)
    assert progress.calibration[1] == pytest.approx(1 / 3)
    assert math.isnan(progress.weighted_auc)
    assert math.isnan(progress.weighted_loss)
    assert all(map(math.isnan, progress.weighted_calibration))
    progress.add(np.array([1], F), np.array([0.75], F), np.array([2], F))
    assert progress.auc == (0.5 + 1 + 1 + 1) / 4
    assert progress.weighted_auc == (0.5 + 1 + 2 + 2) / 6
    assert progress.weighted_calibration == ((0.5 + 0.5 + 0.25 + 1.5) / 5, 3 / 5)
    again = Progress()
    again.restore(*progress.state())
    assert (again.window, again.auc, again.weighted_auc) == (100, progress.auc, progress.weighted_auc)
    assert again.state()[0] == progress.state()[0]


def test_sums_without_rows_have_no_figures() -> None:
    none = Sums()
    assert all(map(math.isnan, (none.mean_loss, *none.rates, none.constant)))
    some = Sums(4, 2, 1, 3)
    assert (some.mean_loss, some.rates) == (0.5, (0.25, 0.75))
    assert some.less(Sums(1, 0.5, 0.25, 1)) == Sums(3, 1.5, 0.75, 2)
    assert [entropy(p) for p in (0, 1)] == [0, 0]
    assert entropy(0.5) == pytest.approx(math.log(2))
    assert str(Window(1234567, 0.5, 0.25, 0.75, 0.125)) == " 0.500000  0.250000    1,234,567  0.750000  0.125000"


@pytest.mark.parametrize(
    ("labels", "predictions", "weights", "found"),
    [
        ([1, 0], [0.9, 0.1], None, 1.0),
        ([1, 0], [0.1, 0.9], None, 0.0),
        ([1, 0], [0.5, 0.5], None, 0.5),
        ([1, 0, 0, 1], [0.2, 0.2, 0.1, 0.3], None, (0.5 + 1 + 1 + 1) / 4),
        ([1, 0, 0], [0.2, 0.1, 0.3], [1, 3, 1], 0.75),
        ([1, 1], [0.2, 0.1], None, math.nan),
        ([0], [0.2], [1], math.nan),
        ([], [], None, math.nan),
        ([], [], [], math.nan),
    ],
)
def test_the_auc_is_the_share_of_pairs_in_order(labels: Any, predictions: Any, weights: Any, found: float) -> None:
    given = None if weights is None else np.array(weights, F)
    assert auc(np.array(labels, F), np.array(predictions, F), given) == pytest.approx(found, nan_ok=True)
    assert total(np.array([1, 2], F), np.array([3, 4], F)) == 11.0


# ---- text


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])
def test_lines_are_never_cut(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(examples_module, "READ", size)
    for content in (b"", b"a", b"a\n", b"ab\ncd\nefghij\n", b"ab\n\ncd"):
        found = list(whole_lines(io.BytesIO(content), "text"))
        assert b"".join(found) == content
        assert all(part.endswith(b"\n") for part in found[:-1])
        assert all(found)


def test_a_line_has_a_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples_module, "READ", 4)
    monkeypatch.setattr(examples_module, "LONGEST", 8)
    assert list(whole_lines(io.BytesIO(b"x" * 8), "text")) == [b"x" * 8]
    with pytest.raises(DataError, match="text: a line is longer than 8 bytes"):
        list(whole_lines(io.BytesIO(b"x" * 9), "text"))
    with pytest.raises(PlanError, match="text returns str; expected bytes: open the file in binary mode"):
        list(whole_lines(io.StringIO("x"), "text"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "fields= must have 1 to 512 names, got 0"),
        ([f"f{k}" for k in range(513)], "fields= must have 1 to 512 names, got 513"),
        (["a", "b", "a"], "two fields have the name 'a'; give"),
        (["x" * 1001], "the name of a field has at most 1,000 bytes, got 1,001: 'xxxx"),
        ("ab", "fields= must be a list of names, got 'ab'"),
        (["a", 5], r"fields= must be a list of names, got \['a', 5\]"),
        (5, "fields= must be a list of names, got 5"),
    ],
)
def test_names_of_fields_are_some_and_different(given: Any, says: str) -> None:
    assert names([f"f{k}" for k in range(512)])[511] == "f511"
    assert names(("x" * 1000,)) == ["x" * 1000]
    with pytest.raises(PlanError, match=says):
        names(given)


def test_interactions_are_numbered_behind_all_fields() -> None:
    assert crossings(["a", "b"], []) == []
    found = crossings(["a", "b", "c"], [("a", "c"), ("c", "b", "a")])
    assert [(parts, own) for parts, own, _ in found] == [([0, 2], 3), ([2, 1, 0], 4)]
    assert found[0][2] != found[1][2]
    assert checked_interactions([["a", "b"]]) == [("a", "b")]
    for given, interactions, says in (
        (None, [("a", "b")], "interactions= needs fields=, because the"),
        (["a"], [("a",)], r"an interaction must have two or more fields, got \('a',\)"),
        (["ad"], [("ad", "usr")], "interactions= names 'usr', which is not a field"),
        (["ad", "user"], [("ad", "usr")], "interactions= names 'usr', which is not a field; nearest: 'user'"),
        (["a", "b", "a*b"], [("a", "b")], r"two fields have the name 'a\*b'; give"),
    ):
        with pytest.raises(PlanError, match=says):
            crossings(given, interactions)  # type: ignore[arg-type]
    for wrong in ("ab", 5, ["ab"], [5]):
        with pytest.raises(PlanError, match=r"interaction"):
            checked_interactions(wrong)  # type: ignore[arg-type]


def test_text_tells_what_it_left_out() -> None:
    text = cb.ffm.ExampleText(io.BytesIO(b"1 |a x\noops\n"), fields=["a"])
    assert text.complaint() == ""
    assert sum(block.rows for block in text) == 1
    assert (text.lines, text.bad) == (2, 1)
    assert text.complaint().startswith("the stream: 1 of 2 lines left out: line 2: ")
    with pytest.raises(PlanError, match=r"format= must be one of vw, libffm, got 'libfm'; nearest: 'libffm'"):
        cb.ffm.ExampleText(io.BytesIO(b""), format="libfm")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="'a' is both in fields= and in ignore=; remove it from one of them"):
        cb.ffm.ExampleText(io.BytesIO(b""), fields=["a"], ignore=["a"])
    for ignore in ("a", 5):
        with pytest.raises(PlanError, match="ignore= must be a list of field names, got"):
            cb.ffm.ExampleText(io.BytesIO(b""), ignore=ignore)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="line 2: "):
        list(cb.ffm.ExampleText(io.BytesIO(b"1 |a x\noops\n"), strict=True))


def test_a_cache_needs_an_example(tmp_path: Path) -> None:
    for content, says in ((b"", "the stream holds no examples"), (b"oops\n", "1 of 1 lines left out")):
        with pytest.raises(DataError, match=says):
            cb.ffm.ExampleCache.parse(io.BytesIO(content), tmp_path / "c.ctrx")
        assert not (tmp_path / "c.ctrx").exists()


# ---- pieces of chunks


LOG = pa.schema([("id", pa.utf8()), ("ts", pa.timestamp("us")), ("n", pa.float64()), ("tags", pa.list_(pa.float64()))])
LAYOUT = Layout.of(pa.schema([LOG.field("n"), LOG.field("tags")]), LOG, id="id", time="ts")


def line(n: int, more: str = "") -> str:
    return f'{{"event": "impression", "id": "i{n}", "ts": "2026-01-01T00:00:0{n}", "n": {n}.5{more}}}\n'


def told(payload: bytes, start: int = 0, layout: Layout = LAYOUT) -> list[tuple[Any, ...]]:
    """Of each piece: start, stop, last, the lines of its events, bad rows, and why nothing more can be read."""
    return [
        (
            piece.start,
            piece.stop,
            piece.last,
            None if piece.events is None or piece.events.lines is None else piece.events.lines.tolist(),
            [row for row, _ in piece.bad],
            piece.refused,
        )
        for piece in pieces("c", payload, layout, start)
    ]


def test_lines_come_in_pieces_that_know_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_module, "ROWS", 2)
    text = (line(0) + line(1) + "\n" + line(3) + "oops\n").encode()
    assert told(text) == [
        (0, 2, False, [0, 1], [], ""),
        (2, 4, False, [3], [], ""),
        (4, 5, True, None, [4], ""),
    ]
    assert told(text, 3) == [(3, 5, True, [3], [4], "")]
    assert told(text, 5) == [(5, 5, True, None, [], "")]
    assert told(b"") == [(0, 0, True, None, [], "")]
    for codec in ("gzip", "zstd"):
        packed = pa.compress(text, codec, asbytes=True)
        assert [piece[:2] for piece in told(packed)] == [(0, 2), (2, 4), (4, 5)]
    monkeypatch.setattr(chunk_module, "BLOCK_BYTES", 100)  # lines of some 70 bytes
    assert [row for piece in told(text) for row in piece[3] or []] == [0, 1, 3]
    assert [row for piece in told(text, 1) for row in piece[3] or []] == [1, 3]
    held = 200 - len(line(0))  # of a second line, when two blocks are read
    long = line(0).encode() + b"x" * 151 + b"\n" + line(2).encode()
    monkeypatch.setattr(chunk_module, "LINE_BYTES", held)
    assert [row for piece in told(long) for row in piece[4]] == [1]
    assert told(long)[-1][5] == ""
    monkeypatch.setattr(chunk_module, "LINE_BYTES", held - 1)
    assert told(long)[-1][5] == f"line 2 is longer than {held - 1} bytes; write one event per line"


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_columnar_chunks_come_in_pieces_that_know_their_rows(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(chunk_module, "ROWS", 2)
    table = pa.table(
        {
            "event": ["impression"] * 5,
            "id": ["a", "b", None, "d", "e"],
            "ts": [datetime(2026, 1, 1)] * 5,
            "n": [0.5] * 5,
            "tags": pa.array([[1.0]] * 5),
            "other": [1] * 5,
        }
    )
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(table, sink)
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(sink, table.schema) as out:
            out.write_table(table, max_chunksize=3)
    payload = sink.getvalue().to_pybytes()
    found = told(payload)
    assert [row for piece in found for row in piece[3]] == [0, 1, 3, 4]
    assert [row for piece in found for row in piece[4]] == [2]
    assert [piece[2] for piece in found] == [False] * (len(found) - 1) + [True]
    assert all(piece[1] - piece[0] <= 2 for piece in found)
    assert [row for piece in told(payload, 4) for row in piece[3]] == [4]
    assert told(payload, 5) == [(5, 5, True, None, [], "")]
    assert told(payload[: len(payload) // 2])[-1][5] != ""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (', "tags": [1, null]', "'tags' is [1.0, None], expected a list without null, NaN or Infinity"),
        (', "tags": [1, NaN]', "'tags' is "),
        (', "tags": [1, -Infinity]', "'tags' is "),
        (', "tags": 5', "tags"),
        ('} {"a": 1', ""),
    ],
)
def test_a_line_that_is_no_request_is_a_bad_row(more: str, says: str) -> None:
    text = (line(0) + line(1, more) + line(2)).encode()
    (piece,) = pieces("c", text, LAYOUT)
    ((row, why),) = piece.bad
    assert (row, says in why) == (1, True)
    assert piece.events is not None
    assert piece.events.rows.column("n").to_pylist() == [0.5, 2.5]
    plain = line(1).replace("1.5", "NaN")
    (piece,) = pieces("c", (line(0) + plain).encode(), LAYOUT)
    assert piece.bad == ((1, "'n' is nan, expected a finite number"),)


def test_a_line_is_read_by_the_rules_of_requests() -> None:
    nested = Layout.of(pa.schema([("a.b", pa.int64())]), LOG, id="id", time="ts")
    row = row_of_line(b'{"event": "click", "id": "x", "ts": "2026-01-01", "a": {"b": 5}}', nested)
    assert row.column("a.b").to_pylist() == [5]
    assert row_of_line(b'{"event": "click", "a": null}', nested).column("a.b").to_pylist() == [None]
    for text, says in (
        (b"[1]", "a line must be a JSON object with the fields of one event, got [1]"),
        (b'{"a": 5}', "column 'a.b' is nested in a field that is 5; expected a JSON object there"),
        (b'{"a": {"b": "x"}}', "'a.b'"),
    ):
        with pytest.raises(DataError, match=re.escape(says)) as caught:
            row_of_line(text, nested)
        assert not str(caught.value).startswith("row 0")


# ---- a search


def model(name: str, aucs: list[float], **options: Any) -> Found:
    return Found(name, {}, None, aucs=aucs, **options)  # type: ignore[arg-type]


def test_the_best_has_the_highest_auc_and_of_equal_ones_is_the_first() -> None:
    a, b, c = model("a", [0.5, 0.7]), model("b", [0.6, math.nan]), model("c", [0.9], failed="it broke")
    found = Results([a, b, c], 10, 20)
    assert found.best is a
    assert a.row == ("a", "0.6000", "0.6000", "0.7000", "0.1000", "0.5000", "-")
    assert model("d", [math.nan]).row == ("d", *"------")
    assert [one.score(False) for one in (a, b)] == [0.6, 0.6]
    assert math.isnan(c.score(False))
    assert str(found).splitlines() == [
        "window = 10, 20 examples",
        "model     avg  median     max     std     min  test",
        "a      0.6000  0.6000  0.7000  0.1000  0.5000     - *",
        "b      0.6000  0.6000  0.6000  0.0000  0.6000     -",
        "c      0.9000  0.9000  0.9000  0.0000  0.9000     -",
        "c: it broke",
    ]
    assert found.json()["best"] == "a"
    assert found.json()["models"][1] == {"name": "b", "options": {}, "windows": [0.6, None], "test": None, "failed": ""}
    a.test, b.test = 0.5, 0.75
    assert Results([a, b, c], 10, 20, tested=True).best is b
    assert "*" not in str(Results([a], 10, 20))


def test_a_grid_names_what_differs() -> None:
    assert grid(k=[4], bits=[20]) == {"the model": {"k": 4, "bits": 20}}
    assert grid(k=[2, 4], bits=[20]) == {"k=2": {"k": 2, "bits": 20}, "k=4": {"k": 4, "bits": 20}}
    assert list(grid(k=[2, 4], hidden=[(), (6, 3)])) == [
        "k=2 hidden=()",
        "k=2 hidden=(6,3)",
        "k=4 hidden=()",
        "k=4 hidden=(6,3)",
    ]
    assert [short(value) for value in (5, "abc", (1, 2), cb.ffm.Rate(0.5), None)] == [
        "5",
        "abc",
        "(1,2)",
        "0.5",
        "None",
    ]
    for options, says in (
        ({"kk": [1]}, "no option 'kk'"),
        ({"k": []}, r"grid\(k=…\) needs a list"),
        ({"k": "ab"}, "needs a list"),
        ({"k": 5}, "needs a list"),
    ):
        with pytest.raises(PlanError, match=says):
            grid(**options)  # type: ignore[arg-type]


def test_models_of_a_search_fit_the_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    models: Any = {"a": {"bits": 10}, "b": {"bits": 10, "lr": None}, "c": {"bits": 37}, "d": {"bits": "x"}}
    needed = (16 << 10) + (8 << 10)
    monkeypatch.setattr(model_search, "memory_here", lambda: needed)
    model_search.check_memory(models)
    monkeypatch.setattr(model_search, "memory_here", lambda: needed - 1)
    with pytest.raises(
        BudgetError, match=f"4 models need {needed:,} bytes at the same time, but this machine has {needed - 1:,}"
    ):
        model_search.check_memory(models)
    with pytest.raises(PlanError, match=r"read; pass them: search\(…, fields="):
        model_search.fields_of([1])
    with pytest.raises(SourceError, match="there is no such file"):
        model_search.opened("nowhere.ctrx")
    assert model_search.opened(None) is None


# ---- NATS


def test_a_position_behind_a_piece_is_a_message_and_a_row() -> None:
    stream = nats_stream.NatsStream.__new__(nats_stream.NatsStream)
    stream.seq, stream.rows = 4, 0
    stream.took(SimpleNamespace(chunk="7", last=False, stop=3))  # type: ignore[arg-type]
    assert (stream.seq, stream.rows) == (6, 3)
    stream.took(SimpleNamespace(chunk="7", last=True, stop=9))  # type: ignore[arg-type]
    assert (stream.seq, stream.rows) == (7, 0)
