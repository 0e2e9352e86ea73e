"""`ctrbox vectors`: what is asked of the functions that make vectors, what is refused, and every line that is printed."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from ctrbox import col
from ctrbox.cli.main import app
from ctrbox.cli.terminal import Mistake


class File(list[int]):
    """A vector file with so many vectors."""

    width = dim = 4096


COMMANDS = functools.cache(lambda: typer.main.get_command(app))


def ctrbox(*words: object) -> None:
    COMMANDS().main([str(w) for w in words], prog_name="ctrbox", standalone_mode=False)


@pytest.fixture
def encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Records what the command passes to `encode`, and returns a fixed result."""
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    skipped: dict[str, int] = {}
    facts = {"items": 9, "encoded": 2345, "resumed": 3, "skipped": skipped, "seconds": {"network": 1.23456}}
    done = SimpleNamespace(file=File([0] * 1234), report=Path("a b.skipped.jsonl"), **facts)
    found = SimpleNamespace(done=done, given=None)

    def encode(out: Path, source: Any, made: Any, **options: Any) -> Any:
        found.given = (out, source, made, options)
        return done

    monkeypatch.setattr("ctrbox.embed.vectors.encode.encode", encode)
    named = lambda name, weights, device: (name, weights, device)
    monkeypatch.setattr("ctrbox.embed.vectors.encoders.Encoder.named", named)
    return found


FOLDER = ("vectors", "encode", "images", "-o", "o.ctrvec", "--encoder", "net", "--weights", "w")


def test_an_encoding_tells_its_vectors_and_what_has_none(
    encoded: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    ctrbox(*FOLDER)
    made = "o.ctrvec: 1,234 vectors of 4,096 numbers; 2,345 images were encoded\n"
    assert capsys.readouterr() == ("", made)
    encoded.done.skipped |= {"too large": 1000, "no image": 34}
    ctrbox(*FOLDER)
    skipped = "1,034 images have no vector (34 no image, 1,000 too large); 'a b.skipped.jsonl' lists them\n"
    assert capsys.readouterr() == ("", made + skipped)
    ctrbox(*FOLDER, "--json")
    said = capsys.readouterr()
    assert (json.loads(said.out), said.err) == (
        {
            "out": "o.ctrvec",
            "items": 9,
            "encoded": 2345,
            "resumed": 3,
            "skipped": {"too large": 1000, "no image": 34},
            "rows": 1234,
            "width": 4096,
            "seconds": {"network": 1.235},
        },
        "",
    )


@pytest.mark.parametrize(
    ("source", "words", "column", "key"),
    [
        ("images", (), None, col("name").key(space="image")),
        ("images", ("--ids", "int"), None, col("name").cast("int").key(space="image")),
        ("ads.parquet", (), "image", col("name").cast("str").key(space="image")),
        (
            "ads.parquet",
            ("--ids", "int", "--key", "ad", "--column", "jpeg", "--space", "s"),
            "jpeg",
            col("ad").key(space="s"),
        ),
    ],
    ids=["names", "numbers", "column as text", "column of numbers"],
)
def test_ids_of_images_become_the_keys_of_the_job(
    encoded: SimpleNamespace, source: str, words: tuple[str, ...], column: str | None, key: Any
) -> None:
    pq.write_table(pa.table({"name": ["1"], "ad": [1], "image": [b""]}), "ads.parquet")
    ctrbox("vectors", "encode", source, *FOLDER[3:], *words)
    out, given, made, options = encoded.given
    assert (out, made) == (Path("o.ctrvec"), ("net", Path("w"), "cpu"))
    assert (given == Path("images")) is (source == "images")
    assert str(options["key"]) == str(key)
    assert options["column"] == column


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--encoder", "net", "--ids", "uuid", "--weights", "w"), "--ids must be text or int, got 'uuid'"),
        (
            ("--encoder", "net", "--column", "image"),
            "--column names a column of a Parquet file, but IMAGES is a folder; remove --column",
        ),
        (("--encoder", "net"), "--encoder net needs the weights of the network; add --weights FILE"),
        (
            ("--encoder", "own.py", "--weights", "w"),
            "--weights can be used only with vgg16-fc6, because own.py loads the weights of its encoder itself; remove "
            "--weights",
        ),
        (("--encoder", "own.py"), "there is no file own.py; there is no Python file in the current folder"),
        (
            ("--encoder", "seven.py"),
            "seven.py has a int as `encoder`; expected a cb.tables.Encoder: encoder = cb.tables.Encoder(module, prepare)",
        ),
        (("--encoder", "none.py"), "none.py defines no `encoder`; expected a cb.tables.Encoder: encoder = "),
    ],
)
def test_what_cannot_be_encoded_is_told(
    encoded: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    if "own.py" not in words:
        Path("seven.py").write_text("encoder = 7\n")
        Path("none.py").write_text("")
    with pytest.raises(Mistake) as told:
        ctrbox("vectors", "encode", "images", "-o", "o.ctrvec", *words)
    assert str(told.value).startswith(message)
    assert encoded.given is None


def test_vectors_of_ads_are_told_with_the_recall_of_their_index(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    ads = SimpleNamespace(schema=SimpleNamespace(names=["ad", "floor"]))
    made = SimpleNamespace(rank=File([0] * 1234), ads=ads, key="ad", recall=None, recall_at=0)
    monkeypatch.setattr("ctrbox.cli.open_runs.load_run", lambda *given, **more: "run")
    monkeypatch.setattr(
        "ctrbox.predict.prerank_folder.export_prerank", lambda *given, **more: asked.append((given, more)) or made
    )
    words = ("vectors", "prerank", "runs/towers", "ads", "-o", "out")
    ctrbox(*words, "--columns", " floor, ,day")
    first = "out: 1,234 vectors of 4096 numbers, stored with the columns ad, floor of their ads\n"
    assert capsys.readouterr() == ("", first)
    options = {"key": None, "columns": ["floor", "day"], "index": "exact", "recall_at": 400}
    assert asked == [(("run", "ads", Path("out")), options)]
    ctrbox(*words, "--json")
    facts = {"out": "out", "vectors": 1234, "width": 4096, "key": "ad", "columns": ["ad", "floor"], "index": "exact"}
    assert json.loads(capsys.readouterr().out) == {**facts, "recall": None, "recall_at": None}
    made.recall, made.recall_at = 0.9876, 1000
    ctrbox(*words, "--index", "hnsw")
    assert (
        capsys.readouterr().err == first + "the index finds 98.8% of the best 1,000 ads, for users of the run's log\n"
    )
    ctrbox(*words, "--index", "hnsw", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found == {**facts, "index": "hnsw", "recall": 0.9876, "recall_at": 1000}
