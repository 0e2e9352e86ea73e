"""Exports a run: its network for ONNX Runtime or torch, its tables as files, and a description of what the network reads.

    folder/
      export.json            sealed: version, inputs, outputs, fields, tables, corrections, size and checksum of every file
      model.onnx, model.pt2  the network (exported_network.py), as ONNX or as a package of torch.export
      table-K.safetensors    keys (n,) int64 in ascending order, rows (n, width) float32
      plan.ctrplan           the plan, which turns raw rows into keys and dense columns
      reader.py              a reader that does not need CTRBox (exported_reader.py)

The exported network is compared with the model on random inputs of other sizes than those with which it was recorded. The folder
is written completely or not at all. Model Servers, and models that torch cannot record, raise a PlanError.
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from ctrbox import __version__
from ctrbox.arguments.names import one_of
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import CtrboxError, PlanError, WriteError
from ctrbox.files.atomic import written_aside
from ctrbox.files.sealed_json import sealed
from ctrbox.files.urls import local_path
from ctrbox.predict import exported_reader
from ctrbox.predict.exported_network import ExportedNetwork
from ctrbox.predict.model_with_tables import LONGEST, ClickModel
from ctrbox.predict.tables_of_fields import Source
from ctrbox.predict.weights_folder import facts_of

FORMATS = {"onnx": "model.onnx", "torch": "model.pt2"}
ONNX = "exporting to ONNX needs the packages onnx, onnxscript and onnxruntime: pip install 'ctrbox[export]'"
SIZES = ((1, 1), (5, 7))  # rows and longest list of the inputs with which an exported network is checked
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # of random inputs, which are larger than those of a trained model


def export_model(click_model: ClickModel, plan: Plan, folder: str | Path, format: str = "onnx") -> Path:
    """Write the export of a model into a new folder and return its path."""
    one_of("format", format, tuple(FORMATS))
    place = local_path(folder, "an export")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise WriteError(f"{place} exists and is not empty; choose another folder for the export")
    for source in click_model.sources:
        _check(source)
    if format == "onnx":
        _need_onnx()
    network = ExportedNetwork(click_model)
    with written_aside(place, folder=True) as aside:
        aside.mkdir()
        _write_network(network, aside / FORMATS[format], format, type(click_model.model).__name__)
        tables = [_write_table(source, aside, k) for k, source in enumerate(click_model.sources)]
        plan.save(aside / "plan.ctrplan")
        reader = Path(exported_reader.__file__).read_bytes()
        (aside / "reader.py").write_bytes(reader)
        for (
            table
        ) in tables:  # safetensors lets only the owner read its files; the others have the mode of the user's umask
            (aside / table["file"]).chmod((aside / "reader.py").stat().st_mode & 0o777)
        described = _described(click_model, network, format) | {"tables": tables}
        files = {path.name: facts_of(path) for path in sorted(aside.iterdir())}
        (aside / "export.json").write_text(sealed({**described, "files": files}), encoding="utf-8")
    return place


def _check(source: Source) -> None:
    shown = ", ".join(map(repr, source.fields))
    if source.traits.objects is not None:
        raise PlanError(
            f"the vectors of {shown} come from a Model Server, which cannot be exported; serve the run with `ctrbox serve`, or "
            "train it with a table for these fields"
        )
    if not source.traits.publishes or source.traits.initial is None:
        raise PlanError(
            f"cannot export the rows of {type(source.embedder).__name__}, the embedder of {shown}; expected a cb.MemoryTable or "
            "a cb.SparseTable"
        )


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise PlanError(f"{ONNX} ({error})") from None


def _write_network(network: ExportedNetwork, path: Path, format: str, model: str) -> None:
    if not network.inputs:
        raise PlanError(f"{model} reads neither a sparse field nor a dense column, so there is nothing to export")
    draw = torch.Generator().manual_seed(0)
    given = tuple(one.drawn(3, 4, draw) for one in network.inputs)
    vary = tuple(
        {k: torch.export.Dim.AUTO for k, size in enumerate(one.shape) if isinstance(size, str)}
        for one in network.inputs
    )
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(network, given, dynamic_shapes={"tensors": vary}, strict=False)
            run = _saved_onnx(network, program, path) if format == "onnx" else _saved_torch(program, path)
            for rows, longest in SIZES:
                some = tuple(one.drawn(rows, longest, draw) for one in network.inputs)
                _compare(model, network, network(*some), run(some))
    except (CtrboxError, OSError):
        raise
    except Exception as error:
        if format == "onnx" and model == "SIM":
            raise PlanError(
                "SIM cannot be exported as onnx, because ONNX has no stable sort; export it with format='torch' (--format "
                "torch)"
            ) from error
        raise PlanError(
            f"{model} cannot be exported as {format}, because torch cannot record its forward as a graph: {_reason(error)}; "
            "its forward may use only operations of torch, must not branch on the values of a batch, and must use "
            "tensor.shape[0] instead of len(tensor)"
        ) from error


def _reason(error: BaseException) -> str:
    """Return the first line of the error that caused an error of torch, without the colors of a terminal."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    return next((line.strip() for line in lines if line.strip()), type(error).__name__)[:300]


Run = Callable[[Sequence[torch.Tensor]], Sequence[np.ndarray]]


def _saved_onnx(network: ExportedNetwork, program: torch.export.ExportedProgram, path: Path) -> Run:
    import onnxruntime

    names = [one.name for one in network.inputs]
    made = torch.onnx.export(program, dynamo=True, verbose=False, input_names=names, output_names=network.outputs)
    assert made is not None
    made.save(path, external_data=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    known = {one.name for one in session.get_inputs()}
    if known != set(names):
        odd = sorted(set(names) ^ known)[0]
        raise PlanError(
            f"the model does not use its input {odd!r}, so the exported network would not have this input; remove the field "
            "from the model"
        )

    def run(given: Sequence[torch.Tensor]) -> Sequence[np.ndarray]:
        found: Sequence[np.ndarray] = session.run(
            network.outputs, {name: one.numpy() for name, one in zip(names, given, strict=True)}
        )
        return found

    return run


def _saved_torch(program: torch.export.ExportedProgram, path: Path) -> Run:
    torch.export.save(program, path)
    module = torch.export.load(path).module()
    return lambda given: [one.numpy() for one in module(*given)]


def _compare(model: str, network: ExportedNetwork, expected: Sequence[torch.Tensor], met: Sequence[np.ndarray]) -> None:
    for name, one, other in zip(network.outputs, expected, met, strict=True):
        if one.shape != other.shape or not np.allclose(one.numpy(), other, **CLOSE, equal_nan=True):
            raise PlanError(
                f"the exported network of {model} gives other values of {name!r} than the model, so it was not written; serve "
                "the run with `ctrbox serve` instead"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages of torch about packages that the export does not need."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _write_table(source: Source, folder: Path, number: int) -> dict[str, Any]:
    initial = source.traits.initial
    assert initial is not None
    keys, rows, _ = source.full.export()
    row, file = source.embedder.row, f"table-{number}.safetensors"
    order = np.argsort(keys, kind="stable")
    save_file({"keys": np.ascontiguousarray(keys[order]), "rows": np.ascontiguousarray(rows[order])}, folder / file)
    return {
        "file": file,
        "fields": list(source.fields),
        "linear": row.linear,
        "dim": row.dim,
        "init": initial.init,
        "seed": initial.seed,
    }


def _described(click_model: ClickModel, network: ExportedNetwork, format: str) -> dict[str, Any]:
    kinds = {torch.float32: "float32", torch.int64: "int64"}
    calibration = click_model.calibration
    return {
        "version": exported_reader.VERSION,
        "ctrbox": __version__,
        "network": FORMATS[format],
        "network_format": format,
        "model": type(click_model.model).__name__,
        "plan": click_model.schema.fingerprint,
        "inputs": [{"name": one.name, "shape": list(one.shape), "type": kinds[one.dtype]} for one in network.inputs],
        "outputs": [{"name": task.name, "kind": task.kind} for task in network.tasks]
        or [{"name": "score", "kind": "binary"}],
        "dense": [{"name": name, "columns": width} for name, width in click_model.schema.dense],
        "fields": {
            name: {
                "table": number,
                "keys": "several" if network.ragged[name] else "one",
                "pooling": source.pooling[source.pooled.index(name)] if name in source.pooled else "none",
                "longest": LONGEST if name in source.sequences else None,
            }
            for number, source in enumerate(click_model.sources)
            for name in source.fields
        },
        # Corrections that the scores already contain; a reader must not apply them again.
        "in_the_scores": {
            "shift": click_model.shift,
            "calibration": None if calibration is None else calibration.kind,
            "calibration_by": None if calibration is None else calibration.by,
        },
    }
