"""Saves a fitted ``cb.Classifier`` as a folder: a run folder, and the columns that the classifier found.

    classifier.json   parameters, classes, what each column is, feature importances, the training table's schema (sealed)
    config.json, plan.ctrplan, model/, summary.json    the run

Every file carries a checksum, and none of them is a pickle. Rows of the frame are not kept. If a classifier is pickled
or copied, the same files are stored as bytes, so ``joblib.dump`` writes only them and the parameters.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from torch import nn

from ctrbox.columns.batch import Schema
from ctrbox.compiled_plan.plan import Plan
from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.files.atomic import written_aside
from ctrbox.files.sealed_json import read_sealed, sealed
from ctrbox.sklearn.frames import Column, Frame
from ctrbox.train.checkpoint import Held, write_weights
from ctrbox.train.run import Run
from ctrbox.train.run_folder import describe

FILE = "classifier.json"
VIEW = "frame"  # the name of the view over the training table
TYPES = {
    str(t): t
    for t in (
        pa.string(),
        pa.int64(),
        pa.bool_(),
        pa.float64(),
        pa.timestamp("us"),
        pa.list_(pa.string()),
        pa.list_(pa.int64()),
    )
}


def write_folder(path: Path, run: Run, described: Mapping[str, Any]) -> None:
    """Write the folder, which is complete or not there at all. Raise a `WriteError` if the path exists and is not an
    empty folder.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise WriteError(f"{path} exists and is not empty; choose another folder, or remove it first")
    with written_aside(path, folder=True) as aside:
        aside.mkdir()
        _write_run(aside, run)
        schema = run.plan.log.source.schema.serialize().to_pybytes().hex()
        with written_aside(aside / FILE) as file:
            file.write_text(sealed({**described, "schema": schema}), encoding="utf-8")


def _write_run(place: Path, run: Run) -> None:
    with written_aside(place / "config.json") as file:
        file.write_text(sealed({"identity": {"trained by": "cb.Classifier"}}), encoding="utf-8")
    run.plan.save(place / "plan.ctrplan")
    write_weights(place / "model", describe(run.learner, run.summary), Held(run.learner.model, run.learner.embedders))
    with written_aside(place / "summary.json") as file:
        file.write_text(sealed(run.summary), encoding="utf-8")


def read_description(path: Path) -> dict[str, Any]:
    """Return the description that was passed to ``write_folder``, after its checksum was verified."""
    if not path.is_dir():
        raise SourceError(f"there is no folder {path}; check the path of the folder that Classifier.save wrote")
    return read_sealed(path / FILE, "folder of a saved classifier")


def read_run(path: Path, described: Mapping[str, Any], build: Callable[[Schema], nn.Module] | None) -> Run:
    """Load the run of the folder. ``build``: function that makes the model from the plan's schema; None: the folder
    says which model it is.
    """
    try:
        frame = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(described["schema"]))).empty_table()
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        raise DataError(f"{path / FILE} does not describe the columns of a classifier: {error}") from None
    views = {VIEW: frame}
    model = None if build is None else build(Plan.load(path / "plan.ctrplan", views=views).schema)
    return Run.load(path, views=views, model=model)


# ---- parts of the description ----


def json_of(what: str, value: Any) -> Any:
    """Return a parameter in a form that JSON can express. Raise a `PlanError` if there is none."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(k): json_of(what, v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [json_of(what, v) for v in value]
    try:
        json.dumps(value)
    except TypeError:
        raise PlanError(
            f"{what} is {value!r}, which cannot be written to a file; expected numbers, text, None, or lists and dicts of these"
        ) from None
    return value


def of_classes(classes: np.ndarray) -> dict[str, Any]:
    return {"dtype": classes.dtype.str, "values": json_of("a class", classes.tolist())}


def classes_of(described: Any) -> np.ndarray:
    kind, values = described["dtype"], described["values"]
    if not isinstance(kind, str) or kind[1:2] not in ("b", "i", "u", "f", "U", "O") or len(values) != 2:
        raise DataError(f"the saved classes are {values!r} of type {kind!r}; expected two of text, numbers or bools")
    made = np.empty(2, np.dtype(kind))
    made[:] = values
    return made


def of_frame(frame: Frame) -> dict[str, Any]:
    columns = [
        {"given": c.given, "name": c.name, "kind": c.kind, "type": str(c.type)}
        | {"missing": c.missing, "mean": c.mean, "constant": c.constant, "family": c.family}
        | {"parts": c.parts, "key_of_null": c.key_of_null}
        for c in frame.columns
    ]
    return {"named": frame.named, "columns": columns}


def frame_of(described: Any) -> Frame:
    columns = tuple(Column(**{**c, "type": TYPES[c["type"]]}) for c in described["columns"])
    return Frame(columns, bool(described["named"]), pa.table({}))


# ---- as bytes, for copies and pickles ----


def files_of(path: Path) -> dict[str, bytes]:
    """Return the bytes of every file of the folder, by the path of the file in it."""
    return {str(PurePosixPath(p.relative_to(path))): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def unpacked(files: Mapping[str, bytes]) -> tempfile.TemporaryDirectory[str]:
    """Write the files to a temporary folder, which the caller closes. Raise a `DataError` if a name leads out of this
    folder.
    """
    folder = tempfile.TemporaryDirectory(prefix="ctrbox-classifier-")
    for name, data in files.items():
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            folder.cleanup()
            raise DataError(f"a pickled classifier names the file {name[:100]!r}; expected a path within its folder")
        place = Path(folder.name, *parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return folder
