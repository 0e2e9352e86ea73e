"""Exports of runs: the scores of the reader are those of the run, and what cannot be exported is refused in words."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.cli import after_training
from ctrbox.embed.embedder import Row
from ctrbox.embed.embedder_traits import traits_of
from ctrbox.errors import PlanError, WriteError
from ctrbox.evaluate.calibration_maps import Calibration, IsotonicMap, PlattMap
from ctrbox.files.sealed_json import read_sealed
from ctrbox.predict import exporting
from ctrbox.predict.exported_network import ExportedNetwork
from ctrbox.predict.exported_reader import VERSION, Exported, Table
from ctrbox.predict.exporting import _described, _write_table, export_model

LABELS = {"click": col("clicked"), "convert": col("bought"), "items": cb.Label(col("count"), "count")}
LABELS["value"] = cb.Label(col("spent"), "regression")


def rows_of(rows: int = 300, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    lists = [[str(k) for k in draw.integers(0, 30, draw.integers(0, 9))] for _ in range(rows)]
    clicked = draw.random(rows) < 0.5
    return pa.table(
        {
            "id": np.arange(rows),
            "user": draw.integers(0, 20, rows),
            "ad": [str(k) for k in draw.integers(0, 30, rows)],
            "words": lists,
            "history": [list(reversed(one)) for one in lists],
            "price": draw.lognormal(-6, 3, rows),
            "age": draw.normal(40, 10, rows),
            "clicked": clicked,
            "bought": clicked & (draw.random(rows) < 0.5),
            "count": draw.poisson(2, rows),
            "spent": draw.normal(3, 1, rows),
        }
    )


def plan_of(several: bool = False, rows: int = 300) -> cb.Plan:
    sparse = {
        "user": col("user").key(),
        "ad": col("ad").key(space="ad"),
        "words": col("words").key(),
        "history": col("history").key(space="ad"),
    }
    label: dict[str, Any] = {"labels": LABELS} if several else {"label": col("clicked")}
    features = cb.FeatureSet(**label, sparse=sparse, dense={"price": col("price"), "age": col("age")})
    return cb.compile(cb.View(rows_of(rows), key="id"), features, threads=1)


def trained(name: str, out: Path | None = None, **settings: Any) -> cb.Run:
    plan = plan_of(name in cb.models.TASK_MODELS)
    torch.manual_seed(2)
    dim = {} if name == "LR" else {"dim": 5}
    model = cb.models.build(name, plan.schema, {**dim, **settings})
    table = cb.MemoryTable(dim.get("dim", 0), init=0.3, seed=2**63 + 7)
    return cb.Trainer(model, table, threads=1).fit(plan, batch_size=50, epochs=2, progress=False, out=out)


class Eager(Exported):
    """The reader of an export whose network is not recorded, but runs as torch computes it."""

    def __init__(self, run: cb.Run, place: Path) -> None:
        network = ExportedNetwork(run.click_model)
        self.described = _described(run.click_model, network, "torch")
        self.fields = self.described["fields"]
        self.outputs = network.outputs
        described = [_write_table(source, place, k) for k, source in enumerate(run.click_model.sources)]
        self.tables = [Table(place, one) for one in described]
        self._run = lambda given: [one.numpy() for one in network(*map(torch.from_numpy, given.values()))]


def compare(run: cb.Run, exported: Exported, close: float = 1e-6) -> None:
    """Compare the scores of learned and of unknown keys, of one row and of none."""
    for table in (rows_of(200), rows_of(60, seed=9).slice(1), rows_of(1), rows_of(0)):
        strange = pa.array([str(1000 + k) if k % 3 == 0 else "3" for k in range(len(table))], pa.string())
        odd = table.set_column(table.schema.get_field_index("ad"), "ad", strange)
        for rows in (table, odd):
            expected = run.predict(rows) if len(rows) else np.zeros(0, np.float32)
            found = exported.scores(run.plan.run(rows))
            for name, scores in found.items():
                wanted = expected[name] if isinstance(expected, dict) else expected
                assert scores.dtype == np.float32
                assert scores.shape == wanted.shape
                assert np.allclose(scores, wanted, rtol=close, atol=close), (name, np.abs(scores - wanted).max())


MODELS = [
    ("LR", {"pooling": "sum"}),
    ("DeepFM", {"hidden": [8], "pooling": {"words": "max", "history": "sum"}, "batch_norm": True, "dropout": 0.2}),
    ("DCNv2", {"hidden": [8]}),
    ("DIN", {"hidden": [8], "activation": "dice"}),
    ("DIN", {"hidden": [8], "activation": "prelu", "softmax": True}),
    ("ESMM", {"hidden": [8], "weights": {"value": 0.1}}),
]
NAMES = [f"{name}-{k}" for k, (name, _) in enumerate(MODELS)]


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=NAMES)
def test_the_network_and_the_tables_give_the_scores_of_the_run(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = trained(name, **settings)
    run.click_model.shift = 0.0 if run.click_model.tasks else -1.25
    compare(run, Eager(run, tmp_path))


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
@pytest.mark.parametrize("by", [None, "user"])
def test_shift_and_calibration_are_part_of_the_scores(kind: str, by: str | None, tmp_path: Path) -> None:
    run = trained("LR")
    keys = np.unique(next(run.plan.batches(300)).sparse["user"].values)[::3] if by else np.zeros(0, np.int64)
    draw = np.random.default_rng(4)

    def one() -> Any:
        if kind == "platt":
            return PlattMap(float(draw.uniform(0, 3)), float(draw.normal()))
        knots = int(draw.integers(1, 6))
        return IsotonicMap(np.sort(draw.normal(size=knots)), np.sort(draw.uniform(0.05, 0.95, knots)))

    run.click_model.shift = 0.5
    run.click_model.calibration = Calibration(kind, one(), by, tuple(keys.tolist()), tuple(one() for _ in keys))
    exported = Eager(run, tmp_path)
    compare(run, exported)
    assert exported.described["in_the_scores"] == {"shift": 0.5, "calibration": kind, "calibration_by": by}


@pytest.mark.parametrize(("dim", "linear", "seed"), [(5, True, 0), (4, False, 3), (1, True, 2**64 - 1), (0, True, 9)])
def test_keys_that_were_never_learned_begin_as_in_the_table(dim: int, linear: bool, seed: int, tmp_path: Path) -> None:
    table = cb.MemoryTable(dim, init=0.7, seed=seed)
    table.open(Row(dim, linear))
    keys = np.array([0, 1, -1, 5, 2**63 - 1, -(2**63), *np.random.default_rng(1).integers(-(2**62), 2**62, 50)])
    table.pull(keys[:20], create=True)
    table.push(keys[1:20], np.ones((19, dim + linear), np.float32))
    of = SimpleNamespace(traits=traits_of(table), full=table, embedder=table, fields=("a",))
    read = Table(tmp_path, _write_table(of, tmp_path, 0))  # type: ignore[arg-type]
    assert np.array_equal(read.look_up(keys), table.pull(keys, create=False))
    assert np.array_equal(read.look_up(keys[:0]), np.zeros((0, dim + linear), np.float32))


def test_an_export_in_torchs_format_is_whole_and_read_without_ctrbox(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("DIN", out=tmp_path / "run", hidden=[8])
    place = tmp_path / "exported"
    after_training.export(tmp_path / "run", place, "torch")
    assert capsys.readouterr().out == f"{place}\n"
    compare(run, Exported(place))
    described = read_sealed(place / "export.json", "export")
    assert described["version"] == VERSION
    assert sorted(described["files"]) == ["model.pt2", "plan.ctrplan", "reader.py", "table-0.safetensors"]
    for name, facts in described["files"].items():
        assert hashlib.sha256((place / name).read_bytes()).hexdigest() == facts["sha256"]
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import reader; t = reader.Table(reader.Path(sys.argv[1]), "
    )
    code += "json.load(open(sys.argv[1] + '/export.json'))['tables'][0]); print(len(t.keys), 'ctrbox' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(run.click_model.sources[0].full.export()[0])), "False"]
    with pytest.raises(WriteError, match=r"exported exists and is not empty; choose another folder for the export"):
        run.export(place)
    table = place / "table-0.safetensors"
    assert table.stat().st_mode == (place / "reader.py").stat().st_mode
    (place / "reader.py").write_text("# changed, which is allowed")
    for name in ("table-0.safetensors", "model.pt2"):
        kept = (place / name).read_bytes()
        (place / name).write_bytes(kept[:-1] + bytes([kept[-1] ^ 64]))
        with pytest.raises(ValueError, match=rf"{name} is damaged or was changed"):
            Exported(place)
        (place / name).unlink()
        with pytest.raises(ValueError, match=rf"{name} is missing"):
            Exported(place)
        (place / name).write_bytes(kept)
    (place / "export.json").write_text(json.dumps({**described, "version": 2}))
    with pytest.raises(ValueError, match=r"export\.json has version 2, but this reader.py reads 1"):
        Exported(place)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), MODELS[1:], ids=NAMES[1:])  # DeepFM has what LR has, and more
def test_onnx_runtime_gives_the_scores_of_the_run(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    run = trained(name, **settings)
    if name == "DCNv2":
        curve = IsotonicMap(np.array([-2.0, 0.0, 1.0]), np.array([0.1, 0.4, 0.8]))
        keys = np.sort(next(run.plan.batches(300)).sparse["user"].values[:1]).tolist()
        run.click_model.calibration = Calibration("isotonic", curve, "user", tuple(keys), (curve,))
    compare(run, Exported(run.export(tmp_path / "exported")))


def run_of(name: str) -> cb.Run:
    plan = plan_of(name in cb.models.TASK_MODELS)
    model = cb.models.build(name, plan.schema, {} if name == "LR" else {"dim": 4})
    return cb.Trainer(model, threads=1).fit(plan, batch_size=100, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(cb.models.EVERY_MODEL))
def test_every_model_can_be_recorded_for_any_number_of_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded graph itself scores; writing and reading it takes twice as long and is tested above and below."""
    recorded: list[Any] = []

    def kept(program: torch.export.ExportedProgram, path: Path) -> Any:
        path.touch()
        module = program.module()
        recorded.append(lambda given: [one.numpy() for one in module(*given)])
        return recorded[0]

    monkeypatch.setattr(exporting, "_saved_torch", kept)
    run = run_of(name)
    run.export(tmp_path / "exported", format="torch")
    exported = Eager(run, tmp_path)
    with torch.no_grad():
        exported._run = lambda given: recorded[0]([torch.from_numpy(one) for one in given.values()])
        compare(run, exported)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(cb.models.EVERY_MODEL))
def test_the_file_of_every_model_gives_the_scores_of_the_run(name: str, tmp_path: Path) -> None:
    run = run_of(name)
    compare(run, Exported(run.export(tmp_path / "exported", format="torch")))


class Branching(nn.Module):
    """A model whose forward depends on the values of a batch."""

    def __init__(self, schema: Any) -> None:
        super().__init__()
        self.reads = cb.models.Reads(schema, 0, linear=True, fields=["user"])

    def forward(self, x: Any) -> torch.Tensor:
        linear = x.linear.sum(1)
        return linear * 2 if bool((linear.detach().sum() > 0).item()) else linear


def test_what_cannot_be_exported_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of()
    run = cb.Trainer(Branching(plan.schema), threads=1).fit(plan, batch_size=100, progress=False)
    with pytest.raises(
        PlanError, match=r"^Branching cannot be exported as torch, because torch cannot record its forward as a graph: "
    ):
        run.export(tmp_path / "exported", format="torch")
    with pytest.raises(PlanError, match=r"'tflite'.*onnx, torch"):
        run.export(tmp_path / "exported", format="tflite")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        PlanError, match=r"needs the packages onnx, onnxscript and onnxruntime: pip install 'ctrbox\[export\]'"
    ):
        run.export(tmp_path / "exported")
    table = run.click_model.sources[0].embedder
    monkeypatch.setattr(type(table), "traits", cb.tables.Traits())
    run.click_model.sources[0].__dict__["traits"] = cb.tables.Traits()
    with pytest.raises(
        PlanError, match=r"cannot export the rows of MemoryTable, the embedder of 'user'; expected a cb.MemoryT"
    ):
        export_model(run.click_model, run.plan, tmp_path / "exported", "torch")
    assert list(tmp_path.iterdir()) == []
