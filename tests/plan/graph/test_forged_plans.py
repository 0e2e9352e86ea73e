"""A saved plan that says what no plan says is refused with the reason, although every checksum fits."""

from __future__ import annotations

import base64
import hashlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.compiled_plan import plan_file as saving
from ctrbox.compiled_plan.plan_file import HEAD, MAGIC, Blobs, load_plan, save_plan
from ctrbox.errors import PlanError
from tests.plan.graph.test_saved import forged

ROWS = pa.table({"n": [1, 2], "s": ["a", "b"]})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "p.plan"
    pq.write_table(ROWS, path.parent / "log.parquet")
    words = col("s").lookup(cb.Dictionary(["a"], [1]), default=0)  # so that the file has blobs
    features = cb.FeatureSet(dense={"n": col("n"), "word": words})
    save_plan(cb.compile(cb.View(path.parent / "log.parquet", name="log"), features, device="cpu"), path)
    return path.read_bytes()


def refusal(tmp_path: Path, data: bytes, **options: Any) -> str:
    (tmp_path / "p.plan").write_bytes(data)
    with pytest.raises(PlanError) as caught:
        load_plan(tmp_path / "p.plan", **options)
    return str(caught.value)


def sealed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def schema_of(type_: pa.DataType) -> str:
    schema = pa.schema([("n", type_), ("s", pa.string())])
    return base64.b64encode(schema.serialize()).decode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h: h["views"][0]["source"].update(text={"color": "red"}), "unknown text option 'color'"),
        (lambda h: h["views"][0].update(schema=None, columns=[["n", "q", 0, False]]), "'q' is not a kind of column"),
        (lambda h: h["views"][0].update(schema=schema_of(pa.uuid())), "has an extension type"),
        (lambda h: h["views"][0].update(schema="AAAA"), "the Arrow schema of a view cannot be read ("),
        (lambda h: h["views"][0]["source"].update(paths=[]), "a view has a source without paths"),
        (lambda h: h["views"][0]["source"].update(paths=["a\0b"]), "a view has a source without paths"),
        (lambda h: h["views"][0].update(rows=-1), "a count must be a whole number from 0"),
        (lambda h: h["views"][0].update(columns=h["views"][0]["columns"] * 2), "have the same name"),
    ],
)
def test_a_view_that_no_plan_has(
    whole: bytes, tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    assert says in refusal(tmp_path, forged(whole, change))


def test_the_shortest_file_is_a_head_and_a_checksum(tmp_path: Path) -> None:
    least = HEAD.size + 32
    head = HEAD.pack(MAGIC, 1, 0)
    assert f"is cut off after {least - 1} bytes" in refusal(tmp_path, head + bytes(31))
    assert "its checksum does not match" in refusal(tmp_path, head + bytes(32))
    assert "its header is not JSON" in refusal(tmp_path, sealed(head))


@pytest.mark.parametrize(
    ("version", "length", "says"),
    [
        (
            0,
            2,
            "is malformed: it begins with format version 0 and a header size of 2 bytes, expected version 1 or later",
        ),
        (
            1,
            3,
            "is malformed: it begins with format version 1 and a header size of 3 bytes, expected version 1 or later and at most "
            "2 bytes; save the plan again",
        ),
    ],
)
def test_a_head_that_lies_about_its_header(tmp_path: Path, version: int, length: int, says: str) -> None:
    assert says in refusal(tmp_path, sealed(HEAD.pack(MAGIC, version, length) + b"{}"))
    assert "blobs must be a list" in refusal(tmp_path, sealed(HEAD.pack(MAGIC, 1, 2) + b"{}"))


@pytest.mark.parametrize("header", [b"{", b"[" * 100_000, b"\xff"])
def test_a_header_that_is_no_json(tmp_path: Path, header: bytes) -> None:
    assert "its header is not JSON" in refusal(tmp_path, sealed(HEAD.pack(MAGIC, 1, len(header)) + header))


def test_bytes_that_belong_to_nothing_are_counted(whole: bytes, tmp_path: Path) -> None:
    assert "malformed: 3 bytes at its end belong to none of its parts" in refusal(
        tmp_path, sealed(whole[:-32] + b"abc")
    )


def test_a_description_that_could_not_be_loaded_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cb.compile(cb.View(ROWS, name="log"), cb.FeatureSet(dense={"n": col("n")}), device="cpu")
    plan.save(tmp_path / "p.plan")
    length = HEAD.unpack((tmp_path / "p.plan").read_bytes()[: HEAD.size])[2]
    monkeypatch.setattr(saving, "MOST_HEADER_BYTES", length)
    plan.save(tmp_path / "p.plan")
    cb.Plan.load(tmp_path / "p.plan", views={"log": ROWS})
    monkeypatch.setattr(saving, "MOST_HEADER_BYTES", length - 1)
    with pytest.raises(PlanError, match=f"needs {length:,} bytes, but a saved plan can have at most {length - 1:,}"):
        plan.save(tmp_path / "p.plan")
    with pytest.raises(PlanError, match=f"a header size of {length:,} bytes"):
        cb.Plan.load(tmp_path / "p.plan", views={"log": ROWS})


def test_only_arrays_of_numbers_are_saved() -> None:
    with pytest.raises(
        PlanError,
        match="an operator holds an array of type complex128, which a saved plan cannot contain; expected numbers or bytes",
    ):
        Blobs().array(np.zeros(2, np.complex128))


# ---- operators of one's own


def declared(**changed: Any) -> Any:
    """Make an operator of the module `mine_for_a_test`, which tests put in place."""

    def twice(x: pa.Array) -> pa.Array:
        return pa.compute.multiply(x, 2)

    twice.__module__, twice.__qualname__ = "mine_for_a_test", "twice"
    return cb.operator(**{"args": ["int"], "result": "int", **changed})(twice)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("mine_for_a_test")
    module.twice = declared()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine_for_a_test", module)
    return module


def saved_with(operator: Any, path: Path) -> Path:
    features = cb.FeatureSet(dense={"x": operator(col("n"))})
    cb.compile(cb.View(ROWS, name="log"), features, device="cpu").save(path)
    return path


def test_an_operator_is_found_again_by_its_path(mine: Any, tmp_path: Path) -> None:
    path = saved_with(mine.twice, tmp_path / "p.plan")
    plan = cb.Plan.load(path, views={"log": ROWS}, allow_operators=True)
    (batch,) = plan.batches(8)
    assert batch.dense[:, 0].tolist() == [2, 4]
    assert cb.Plan.load(path, views={"log": ROWS}, allow_operators=[mine.twice]).fingerprint == plan.fingerprint


def test_an_operator_whose_name_leads_elsewhere_is_not_saved(mine: Any, tmp_path: Path) -> None:
    mine.twice = len
    with pytest.raises(PlanError, match="'mine_for_a_test:twice' cannot be saved: that path names another object"):
        saved_with(declared(), tmp_path / "p.plan")


@pytest.mark.parametrize(
    "changed", [{"args": ["float"]}, {"result": "float"}, {"nullable": True}, {"arrays": "numpy"}], ids=str
)
def test_an_operator_of_other_types_is_refused(mine: Any, tmp_path: Path, changed: dict[str, Any]) -> None:
    path = saved_with(mine.twice, tmp_path / "p.plan")
    mine.twice = declared(**changed)
    with pytest.raises(
        PlanError,
        match="'mine_for_a_test:twice' has other argument or result types than when the plan was saved; restore its "
        "declaration, or save the plan again",
    ):
        cb.Plan.load(path, views={"log": ROWS}, allow_operators=True)


def test_an_operator_that_is_gone_is_named(mine: Any, tmp_path: Path) -> None:
    path = saved_with(mine.twice, tmp_path / "p.plan")
    del mine.twice
    with pytest.raises(PlanError, match="'mine_for_a_test:twice' cannot be imported: AttributeError"):
        cb.Plan.load(path, views={"log": ROWS}, allow_operators=True)


@pytest.mark.parametrize("wrong", ["", "os", ":system", "os:", "os path:x", "../x:y", "os:system()"])
def test_an_operator_is_named_by_an_import_path(mine: Any, tmp_path: Path, wrong: str) -> None:
    path = saved_with(mine.twice, tmp_path / "p.plan")

    def change(header: dict[str, Any]) -> None:
        (call,) = [e for e in header["expressions"] if e[0] == "user"]
        call[2]["function"]["operator"]["path"] = wrong

    assert "is not an import path" in refusal(tmp_path, forged(path.read_bytes(), change), allow_operators=True)
