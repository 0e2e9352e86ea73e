"""Converts a run to published weights and back: everything that determines its predictions, without training state.

    about    model, config, fingerprint of the plan, shift or calibration, tables: fields, dim, linear, and
                 of a table: init, seed
                 of a Model Server: server: kind of its sub-model, width, vocabulary; encoder, dtype: what made the vectors of
                 its file, and their type, if the file names them
    parts    dense.NAME                          the model's tensors
             table.K.key, .weight, .vector       rows of a table; for a Model Server, the vectors of all its objects
             table.K.model.NAME                  weights of its sub-model

All parts are in one file, so the tables and sub-models of a version are replaced together. A reader first builds the models
without memory for weights, and compares every shape before it allocates any.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ctrbox import models
from ctrbox.columns.batch import Schema
from ctrbox.columns.encoder_of_vectors import EncodedBy
from ctrbox.columns.key_kinds import mismatch
from ctrbox.embed.embedder import Embedder, Row
from ctrbox.embed.vectors.published_table import PublishedTable, PublishedVectors
from ctrbox.embed.vectors.submodels import OTHER, TEXT, kind_of, unfilled
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.predict.model_from_file import untrained
from ctrbox.predict.model_with_tables import ClickModel
from ctrbox.predict.stored_calibration import described_calibration, restore_calibration
from ctrbox.predict.weights_folder import DTYPES
from ctrbox.publish.weight_file import Part, Weights
from ctrbox.publish.weights_of_models import CLICK_MODEL, table_parts

OF_DTYPE = {name: dtype for dtype, name in DTYPES.items()}


def weights_of_run(click_model: ClickModel) -> Weights:
    """Return the weights of a run to publish. The sub-models of its Model Servers now compute the vectors of all objects."""
    model = click_model.model
    name, config = type(model).__name__, getattr(model, "config", None)
    own = models.EVERY_MODEL.get(name) is not type(model) or config is None
    parts = list(_tensor_parts("dense.", model))
    tables: list[dict[str, Any]] = []
    for k, source in enumerate(click_model.sources):
        embedder = source.embedder
        about: dict[str, Any] = {"fields": list(source.fields), "dim": embedder.dim, "linear": embedder.row.linear}
        objects, initial = source.traits.objects, source.traits.initial
        if not source.traits.publishes or initial is None:
            raise PlanError(
                f"cannot publish the rows of {type(embedder).__name__}; expected a table or a cb.tables.ModelServer"
            )
        if objects is not None:
            kind = kind_of(objects.submodel)
            about["server"] = {"submodel": kind, "width": objects.data.width, "tokens": objects.data.tokens}
            if objects.data.encoder is not None:
                about["server"] |= {"encoder": objects.data.encoder.facts(), "dtype": objects.data.dtype.name}
            if kind != OTHER:
                parts += _tensor_parts(f"table.{k}.model.", objects.submodel)
        else:
            about |= {"init": initial.init, "seed": initial.seed}
        keys, rows, _ = source.full.export()
        linear = int(embedder.row.linear)
        parts += table_parts(f"table.{k}.", keys, rows[:, 0] if linear else None, rows[:, linear:])
        tables.append(about)
    # Of a class of the user's own only the name is kept: whoever serves it brings the class.
    facts: dict[str, Any] = {"model": name, "config": None if own else config}
    facts |= {"fingerprint": click_model.schema.fingerprint, **described_calibration(click_model)}
    facts["keys"] = {f.name: f.keys for f in click_model.schema.sparse if f.keys}
    return Weights(CLICK_MODEL, {**facts, **({"own": True} if own else {}), "tables": tables}, parts)


def click_model_of(weights: Weights, schema: Schema, where: str, own: nn.Module | None = None) -> ClickModel:
    """Return the model of a published version with its tables, which predicts and cannot learn. ``schema``: of its plan.

    ``own``: for a version of a model of the user's own class, a model of this class with any weights; it is copied.
    """
    if weights.kind != CLICK_MODEL:
        raise DataError(
            f"{where} contains weights of kind {weights.kind!r}, but a published run has the kind {CLICK_MODEL!r}"
        )
    about = weights.about
    kinds = about.get("keys")
    if isinstance(kinds, dict) and (told := mismatch(kinds, schema.key_kinds)):
        raise DataError(
            f"{where} does not fit the plan: {told}; use the plan it was trained on, or train the model again on this one"
        )
    if about.get("fingerprint") != schema.fingerprint:
        raise DataError(
            f"{where} was trained with a plan of fingerprint {str(about.get('fingerprint'))[:16]}…, but this plan has the "
            f"fingerprint {schema.fingerprint[:16]}…; their features, cleaning steps or fitted values differ; use the plan "
            "that the model was trained with"
        )
    try:
        if about.get("own") is True:
            model = _own(own, str(about["model"]), where)
            tensors: dict[str, torch.Tensor] = _tensors(model, weights, "dense.", where)
        else:
            tensors = {}
            model = untrained(
                about["model"],
                schema,
                about["config"],
                len(weights.parts),
                lambda shapes: tensors.update(_tensors(shapes, weights, "dense.", where)),
            )
        model.load_state_dict(tensors, assign=True)
        embedders: dict[str, Embedder] = {}
        for k, table in enumerate(about["tables"]):
            embedders.update(dict.fromkeys(map(str, table["fields"]), _table(weights, k, table, where)))
        made = ClickModel(model, schema, embedders)
        restore_calibration(made, about, "it")
    except CtrboxError as error:
        raise DataError(f"cannot read {where}: {error}") from error
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError) as error:
        raise DataError(f"cannot read {where}: its parts contradict each other: {error!r}") from error
    made.model.eval().requires_grad_(False)
    return made


def _own(own: nn.Module | None, name: str, where: str) -> nn.Module:
    """Return a copy of the user's model, after comparing its class with ``name``; no code that a file names is imported."""
    if own is None:
        raise PlanError(
            f"it holds weights of the user-defined model class {name[:100]!r}, and CTRBox never imports code that a "
            "file names; pass the model: open(…, model=…)"
        )
    if type(own).__name__ != name:
        raise PlanError(
            f"it holds the weights of {name[:100]!r}, but the model that was passed is a {type(own).__name__}"
        )
    return copy.deepcopy(own).cpu()


def _table(weights: Weights, k: int, about: dict[str, Any], where: str) -> PublishedTable:
    prefix = f"table.{k}."
    row = Row(int(about["dim"]), bool(about["linear"]))
    keys = weights.part(f"{prefix}key").data.view(np.int64)
    vectors = _floats(weights.part(f"{prefix}vector"), (len(keys), row.dim))
    server = about.get("server")
    if server is None:
        if row.linear:
            vectors = np.concatenate([_floats(weights.part(f"{prefix}weight"), (len(keys), 1)), vectors], 1)
        return PublishedTable(keys, vectors, row, init=float(about["init"]), seed=int(about["seed"]))
    width, tokens, kind = int(server["width"]), bool(server["tokens"]), str(server["submodel"])
    if kind == OTHER:
        return PublishedVectors(keys, vectors, None, width=width)
    shapes = {p.name.removeprefix(f"{prefix}model."): p.shape for p in weights.parts if f"{prefix}model." in p.name}
    submodel = unfilled(kind, shapes)
    submodel.load_state_dict(_tensors(submodel, weights, f"{prefix}model.", where), assign=True)
    takes = width if kind == TEXT else shapes["0.weight"][1]
    gives = shapes["out.weight"][0] if kind == TEXT else list(submodel.children())[-1].out_features
    if takes != width or gives != row.dim or tokens != (kind == TEXT):
        raise ValueError(f"a sub-model from {takes} to {gives} numbers, a table from {width} to {row.dim}")
    vocabulary = shapes["tokens.weight"][0] - 1 if kind == TEXT else 0
    encoder = None if "encoder" not in server else EncodedBy.read(server["encoder"], where)
    dtype = str(server.get("dtype", "float32"))
    if dtype not in ("float32", "float16"):
        raise ValueError(f"vectors of type {dtype[:20]!r}")
    return PublishedVectors(keys, vectors, submodel, width=width, vocabulary=vocabulary, encoder=encoder, dtype=dtype)


def _floats(part: Part, shape: tuple[int, int]) -> Any:
    if part.dtype != "F32":
        raise ValueError(f"part {part.name!r} of {part.dtype}")
    return _finite(part).reshape(shape)


def _finite(part: Part) -> np.ndarray:
    """Return the numbers of a part. Raise a DataError if one is not finite: now, while the older version can still serve."""
    if part.dtype == "F32" and not np.isfinite(part.data).all():
        raise DataError(f"part {part.name!r} contains a NaN or an infinity; publish another version")
    return part.data


def _tensor_parts(prefix: str, module: nn.Module) -> Iterator[Part]:
    for name, tensor in module.state_dict().items():
        held = tensor.detach().cpu().contiguous()
        if held.dtype not in DTYPES:
            raise PlanError(f"weight {name!r} has the type {held.dtype}, which cannot be published")
        flat = held.reshape(-1)
        data = flat if held.dtype == torch.float32 else flat.view(torch.uint8)
        yield Part(prefix + name, DTYPES[held.dtype], tuple(held.shape), data.numpy())


def _tensors(module: nn.Module, weights: Weights, prefix: str, where: str) -> dict[str, torch.Tensor]:
    """Return the weights for a module, which may be on the meta device.

    Raise a DataError if names, shapes or types differ from those of the module.
    """
    mine = module.state_dict()
    found = {p.name.removeprefix(prefix): p for p in weights.parts if p.name.startswith(prefix)}
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted({*mine, *found}):
        if name not in mine or name not in found:
            raise DataError(f"{where} holds a different model: only one of the two has the weight {name!r}")
        part = found[name]
        if part.shape != tuple(mine[name].shape) or OF_DTYPE.get(part.dtype) != mine[name].dtype:
            raise DataError(
                f"{where} holds a different model: weight {name!r} is {part.shape} {part.dtype}, expected "
                f"{tuple(mine[name].shape)} {DTYPES.get(mine[name].dtype)}"
            )
        # A copy in torch's own memory, which begins at a multiple of 64 bytes: libraries of x86 may round a product of
        # matrices otherwise where a matrix begins elsewhere.
        flat = torch.tensor(_finite(part))
        tensors[name] = (
            flat.view(mine[name].dtype).reshape(part.shape)
            if part.data.size
            else torch.empty(part.shape, dtype=mine[name].dtype)
        )
    return tensors
