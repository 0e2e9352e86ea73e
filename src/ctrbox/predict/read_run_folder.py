"""Reads a finished run from its folder: its plan, and its model with the tables, ready to predict.

No file is used before its checksum was compared, and no code that a file names is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ctrbox import models
from ctrbox.arguments.names import nearest
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.columns.batch import Schema
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.plan_file import operators_of
from ctrbox.embed.embedder import Embedder
from ctrbox.embed.shards import is_on_disk, loaded
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.embed.vectors.model_server_file import is_server, read_server
from ctrbox.embed.vectors.submodels import OTHER, kind_of_shapes, unfilled
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.sealed_json import read_sealed
from ctrbox.files.stored_folder import StoredFolder
from ctrbox.files.urls import local_path, stored_url
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.predict.check_keys_of_vector_files import check_key_kinds
from ctrbox.predict.model_from_file import untrained
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.stored_calibration import restore_calibration
from ctrbox.predict.weights_folder import read_dense, read_state, same_weights, shapes_in

Made = TypeVar("Made", bound=ClickModel)


def fetched_run(folder: str | Path | StoredFolder) -> tuple[Path, StoredFolder | None]:
    """Return the local path of a run folder, and None or, for a folder on S3 or HDFS, the `StoredFolder`.

    A folder on S3 or HDFS is downloaded without its checkpoints.
    """
    if not isinstance(folder, StoredFolder):
        url = stored_url(folder, "a run folder")
        if url is None:
            return Path(folder), None
        folder = StoredFolder(url, "a run folder")
    folder.need()
    folder.pull(lambda name: not name.startswith(("checkpoints/", "best/")))
    return folder.path, folder


def read_run(
    folder: str | Path,
    make: Callable[..., Made],
    *,
    model: nn.Module | None = None,
    views: dict[str, Any] | None = None,
    allow_operators: bool | Sequence[UserOperator] = False,
    allow_views: Sequence[str] = (),
    plan: Plan | None = None,
    ram: int | str | None = None,
    servers: Mapping[str, ModelServer] | None = None,
) -> tuple[Plan, Made]:
    """Return the plan and the model of a finished run. ``make``: `ClickModel`, or a class that extends it. `cb.Run.load`
    describes the other arguments."""
    place = local_path(folder, "a run folder")
    if not place.is_dir():
        raise SourceError(f"there is no run folder {place}; check the path")
    read_sealed(place / "config.json", "run folder")
    if not (place / "model").is_dir():
        raise DataError(
            f"{place} holds an unfinished run: its model is missing; run the training again with the same out= to "
            "continue it"
        )
    state = read_state(place / "model")
    saved = plan_of_run(place, plan, views=views, allow_operators=allow_operators, allow_views=allow_views)
    schema = saved.schema
    if schema.fingerprint != state.get("fingerprint"):
        raise DataError(f"{place}: " + other_plan(str(state.get("fingerprint")), saved.fingerprint))
    if model is None:
        model = _built(place, state, schema)
    made = make(model, schema, _tables(place, state, ram, servers or {}), threads=saved.threads)
    check_key_kinds(made, saved)
    read_dense(place / "model", model)
    restore_calibration(made, state, str(place / "model"))
    return saved, made


def plan_of_run(
    place: Path,
    plan: Plan | None = None,
    *,
    views: dict[str, Any] | None = None,
    allow_operators: bool | Sequence[UserOperator] = False,
    allow_views: Sequence[str] = (),
) -> Plan:
    """Return the plan of a run folder or, if ``plan`` is given, that plan with the fitted values of the folder."""
    saved = Plan.load(
        place / "plan.ctrplan",
        views=views,
        allow_operators=allow_operators if plan is None else _and_those_of(plan, allow_operators),
        allow_views=allow_views,
    )
    if plan is None:
        return saved
    if plan.graph.fits and len(plan.graph.fits) == len(saved.graph.fits):
        return plan._like(fitted=saved.fitted)
    return plan


def _and_those_of(plan: Plan, allowed: bool | Sequence[UserOperator]) -> bool | Sequence[UserOperator]:
    """Return the allowed operators together with those of ``plan``, which its owner has imported already."""
    if allowed is True:
        return True
    return [*operators_of(plan), *(allowed or ())]


def _built(place: Path, state: Mapping[str, Any], schema: Schema) -> nn.Module:
    """Return a new model of the class that a run names. Its shapes are compared with the weights before it allocates them."""
    name, config = state.get("model"), state.get("config")
    if not isinstance(name, str) or name not in models.EVERY_MODEL or not isinstance(config, dict):
        raise PlanError(
            f"{place} was trained with {name!r}, which is not one of cb.models; build the model and pass it: "
            f"cb.Run.load(…, model={name}(plan.schema))"
        )
    try:
        held = len(shapes_in(place / "model"))
        return untrained(name, schema, config, held, lambda shapes: same_weights(place / "model", shapes))
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError) as error:
        raise DataError(f"{place / 'model'} is damaged: {name} cannot be built from its config: {error}") from None


def _tables(
    place: Path, state: Mapping[str, Any], ram: int | str | None, servers: Mapping[str, ModelServer]
) -> dict[str, Embedder]:
    by_field: dict[str, Embedder] = {}
    folders = sum(is_on_disk(p) for p in (place / "model").glob("table-*.ctrtable"))
    if ram is not None and not folders:
        raise PlanError(f"ram= is for Sparse Tables, but the tables of {place} are in memory; remove ram=")
    share = None if ram is None else checked_bytes("ram", ram) // folders
    for k, fields in enumerate(_fields_of_tables(place / "model", state)):
        file = place / "model" / f"table-{k}.ctrtable"
        table: Embedder
        given = {id(servers[name]): servers[name] for name in fields if name in servers}
        if is_server(file):
            if len(given) != 1:
                raise PlanError(
                    f"{place} computes the vectors of {', '.join(map(repr, fields))} "
                    f"with a Model Server; pass one, "
                    f"with its data: cb.Run.load(…, servers={{{fields[0]!r}: cb.tables.ModelServer(…)}})"
                )
            table = given.popitem()[1]
            table.restore(file, optimizer=False)
        elif given:
            raise PlanError(f"{place} has a table for {fields[0]!r}, not a Model Server; remove it from servers=")
        else:
            table = loaded(file, ram=share)
        by_field.update(dict.fromkeys(fields, table))
    return by_field


def _fields_of_tables(model: Path, state: Mapping[str, Any]) -> list[list[str]]:
    """Return the fields of each table of a run, after checking that each table has a file and no field has two tables."""
    tables = state.get("tables")
    held = [name for name in state["files"] if name.startswith("table-")]
    if not isinstance(tables, list) or not all(isinstance(fields, list) and fields for fields in tables):
        raise DataError(f"{model} is damaged: it does not describe its tables; restore it from a copy")
    if sorted(held) != sorted(f"table-{k}.ctrtable" for k in range(len(tables))):
        raise DataError(f"{model} is damaged: it describes {len(tables):,} tables and holds {len(held):,}")
    named = [name for fields in tables for name in fields]
    if not all(isinstance(name, str) for name in named) or len(set(named)) != len(named):
        raise DataError(
            f"{model} is damaged: the name of a field is not a string, or one field belongs to two tables; restore it from a "
            "copy"
        )
    return tables


def servers_of(folder: str | Path, files: Mapping[str, str | Path]) -> dict[str, ModelServer]:
    """Return Model Servers for `cb.Run.load` that read the given vector files, by field.

    Their sub-models are `cb.tables.ImageEmbedding` or `cb.tables.TextEmbedding`."""
    place = local_path(folder, "a run folder")
    found: dict[str, ModelServer] = {}
    tables = server_tables(place)
    known = [field for fields in tables.values() for field in fields]
    for name in files:
        if name not in known:
            there = f"it has those of {', '.join(map(repr, known))}" if known else "it has none"
            raise PlanError(f"{place} has no Model Server for {name!r}, {there}{nearest(name, known)}")
    for file, fields in tables.items():
        mine = [name for name in fields if name in files]
        if not mine:
            continue
        if len(mine) > 1:
            raise PlanError(
                f"{', '.join(map(repr, mine))} share one Model Server in {place}; pass its file only for {mine[0]!r}"
            )
        tensors, _ = read_server(file)
        shapes = {n.removeprefix("model."): tuple(t.shape) for n, t in tensors.items() if n.startswith("model.")}
        kind = kind_of_shapes(shapes)
        if kind == OTHER:
            raise PlanError(
                f"the sub-model of {mine[0]!r} is a user-defined class, so a vector file is not enough; load it from Python: "
                f"cb.Run.load(folder, servers={{{mine[0]!r}: cb.tables.ModelServer(path, submodel)}})"
            )
        found[mine[0]] = ModelServer(files[mine[0]], unfilled(kind, shapes).to_empty(device="cpu"))
    return found


def server_tables(folder: str | Path) -> dict[Path, list[str]]:
    """Return the files of a run's Model Servers, with the fields of each."""
    model = Path(folder) / "model"
    tables = _fields_of_tables(model, read_state(model))
    files = {model / f"table-{k}.ctrtable": fields for k, fields in enumerate(tables)}
    return {file: fields for file, fields in files.items() if is_server(file)}


def other_plan(mine: str, theirs: str) -> str:
    return (
        f"this model was trained with a plan of fingerprint {mine[:16]}…, but this plan has the fingerprint {theirs[:16]}…; "
        "features, cleaning or fitted values differ; use run.plan, or run.plan.over(data)"
    )
