"""Extracts weights without optimizer state from the models of CTRBox, and loads them again.

a saved Deep FFM                   parts lr, ffm, dense; cb.DeepFFM.load reads them
*.safetensors, a run folder        a part for each tensor (of a run folder, only the dense weights)
a table, its `export` as *.parquet parts key, weight, vector; keys of the base stay in their order, and new keys follow
a `cb.Run`                         all that decides its predictions: tensors, tables, vectors and sub-models of its Model Servers
a weight file                      the parts of this file
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors

from ctrbox import _native
from ctrbox.columns.key_kinds import checked_kinds
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.untrusted_files import open_regular
from ctrbox.files.urls import local_path
from ctrbox.publish.weight_file import MAGIC, SIZES, Directory, Part, Weights, read_weights, write_weights

DEEP_FFM, TENSORS, TABLE, CLICK_MODEL = "deep_ffm", "tensors", "table", "click_model"
FFM_MAGIC = b"CTRFFM\0\0"
SETTINGS = ("fields", "context", "k", "bits", "lr", "ffm", "hidden", "norm", "residual", "ffm_init", "seed")
RATES = ("lr_rates", "ffm_rates", "nn_rates")
NO_KEYS = np.zeros(0, np.int64)
# Names of the parts that hold the keys of tables. A buffer of a user's model may have a name that ends in "key", too.
KEYS = re.compile(r"(table\.\d+\.)?key")


class Publishable(Protocol):
    """A model with a method that returns its weights, such as `cb.DeepFFM` and `cb.Run`."""

    def published(self) -> Weights: ...


class Exportable(Protocol):
    """A table of trainable rows."""

    @property
    def row(self) -> Any: ...
    def export(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...


Model = str | os.PathLike[str] | Weights | Publishable | Exportable


def pack(
    model: Model,
    out: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    quantize: bool = True,
    decimals: tuple[int, int] | None = None,
) -> Directory:
    """Write the weights of a model, without optimizer state and as 16-bit codes.

    ``base``: the weight file of the version before; its buckets, and the order of the rows of its tables, are kept if possible.
    """
    weights = weights_of(model)
    if weights.kind in (TABLE, CLICK_MODEL):
        weights = _in_order(weights, base)
    return write_weights(out, weights, quantize=quantize, decimals=decimals, base=base)


def unpack(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Convert a weight file to safetensors (tensors) or Parquet (rows of a table).

    A Deep FFM needs no conversion: `cb.DeepFFM.load` reads its weight file.
    """
    found = read_weights(path)
    if found.kind in (TENSORS, CLICK_MODEL):
        with written_aside(local_path(out, "an unpacked model")) as aside:
            aside.write_bytes(_safetensors(found.parts))
    elif found.kind == TABLE:
        with written_aside(local_path(out, "an unpacked model")) as aside:
            pq.write_table(_rows(found), aside)
    else:
        raise DataError(f"{path} holds weights of kind {found.kind!r}; load a Deep FFM with cb.DeepFFM.load(path)")


def weights_of(model: Model) -> Weights:
    if isinstance(model, Weights):
        return model
    if not isinstance(model, str | os.PathLike):
        if hasattr(model, "published"):
            return model.published()
        if hasattr(model, "export"):
            return _exported(model)
        raise PlanError(
            f"cannot publish {type(model).__name__}; expected the path of a model, a cb.DeepFFM, a cb.Run or a table"
        )
    path = local_path(model, "a model to publish")
    if path.is_dir():
        path = path / "model" / "dense.safetensors" if (path / "model").is_dir() else path / "dense.safetensors"
    try:
        with open_regular(path, follow=True) as file:
            magic = file.read(8)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
    if magic == FFM_MAGIC:
        return _saved_ffm(path)
    if magic == MAGIC:
        return read_weights(path)
    if magic[:4] == b"PAR1":
        return _table(path)
    if path.suffix == ".safetensors":
        return _tensors(path)
    raise DataError(
        f"{path} is not a model of CTRBox; expected a saved Deep FFM, a run folder, *.safetensors, a table's Parquet "
        f"export or a "
        "weight file"
    )


# ---- Deep FFM


def ffm_weights(model: _native.DeepFfm, fields: list[str], learned: int, keys: list[str]) -> Weights:
    s = model.settings
    lr, rows, _ = model.parts
    about: dict[str, Any] = {name: getattr(s, name) for name in SETTINGS}
    about |= {name: [(r := getattr(s, name)).rate, r.power_t, r.initial] for name in RATES}
    about |= {"names": fields, "learned": learned}
    if any(keys):
        about["keys"] = keys
    flat = model.weights()
    ffm = lr + rows * model.stride
    parts = {"lr": flat[:lr], "ffm": flat[lr:ffm], "dense": flat[ffm:]}
    return Weights(DEEP_FFM, about, [Part.floats(name, part) for name, part in parts.items()])


def ffm_of(weights: Weights, where: str, learns: bool = True) -> tuple[_native.DeepFfm, list[str], int, list[str]]:
    """Return a model with these weights, its fields, how many examples it learned from, and what the keys of its fields hash.

    With ``learns``, its accumulators have their initial values; otherwise the model has none and can only predict. A model of
    mapped weights can only predict, and reads the weights from the mapped file.
    """
    if weights.kind != DEEP_FFM:
        raise DataError(f"{where} holds weights of kind {weights.kind!r}; expected {DEEP_FFM!r}")
    settings, about = _native.FfmSettings(), weights.about
    try:
        for name in SETTINGS:
            setattr(settings, name, about[name])
        for name in RATES:
            setattr(settings, name, _native.BlockRates(*about[name]))
        fields, learned = [str(name) for name in about["names"]], int(about["learned"])
        keys = checked_kinds(about.get("keys"), fields)
        parts = [weights.part(name).data for name in ("lr", "ffm", "dense")]
        count = sum(part.size for part in parts)
        wrong = settings.wrong() or ("" if len(fields) == settings.fields else "names and fields")
        # The file holds its weights, so it bounds the model that is made for them.
        if not wrong and count != settings.weights():
            wrong = f"{count:,} weights, expected {settings.weights():,}"
        if wrong or not 0 <= learned < 1 << 63:
            raise ValueError(wrong or f"learned {learned}")
        if weights.mapped is not None:
            file = weights.mapped
            model = _native.DeepFfm(settings, file.octets, file.places["lr"], file.places["ffm"], parts[2])
        else:
            model = _native.DeepFfm(settings, learns)
            model.give_weights(np.concatenate(parts))
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"cannot read {where}: its settings contradict themselves: {error}; copy the file again, or publish it again"
        ) from error
    return model, fields, learned, keys


def _saved_ffm(path: Path) -> Weights:
    try:
        return ffm_weights(*_native.DeepFfm.load(str(path)))
    except _native.DamagedFile as error:
        raise SourceError(f"cannot read {path}: {error}; check the path, or use another copy of the file") from error


# ---- torch


def _tensors(path: Path) -> Weights:
    try:
        found = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    parts = []
    for name, facts in sorted(found, key=lambda f: f[0]):
        if facts["dtype"] not in SIZES:
            raise DataError(
                f"tensor {name!r} of {path} has the type {facts['dtype']}; expected one of {', '.join(SIZES)}"
            )
        data = np.frombuffer(bytes(facts["data"]), np.float32 if facts["dtype"] == "F32" else np.uint8)
        parts.append(Part(name, facts["dtype"], tuple(facts["shape"]), data))
    return Weights(TENSORS, {}, parts)


def _safetensors(parts: list[Part]) -> bytes:
    """Return the bytes of a safetensors file. The writer of the package takes other arguments in each of its versions."""
    head: dict[str, Any] = {}
    at = 0
    for part in parts:
        head[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [at, at + part.data.nbytes]}
        at += part.data.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(part.data.tobytes() for part in parts)])


# ---- tables


def _exported(table: Exportable) -> Weights:
    keys, rows, _ = table.export()
    linear = 1 if table.row.linear else 0
    return _rows_of(keys, rows[:, 0] if linear else None, rows[:, linear:])


def _table(path: Path) -> Weights:
    try:
        rows = pq.read_table(path, columns=[c for c in pq.read_schema(path).names if c in ("key", "weight", "vector")])
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    vector: Any = rows.schema.field("vector").type if "vector" in rows.schema.names else None
    of_floats = vector is not None and pa.types.is_fixed_size_list(vector) and vector.value_type == pa.float32()
    if "key" not in rows.schema.names or not of_floats:
        raise DataError(
            f"{path} is not an export of a table: it has the columns {', '.join(rows.schema.names)}; expected key and vector"
        )
    flat = rows["vector"].combine_chunks().flatten().to_numpy()
    weight = rows["weight"].to_numpy() if "weight" in rows.schema.names else None
    return _rows_of(rows["key"].to_numpy(), weight, flat.reshape(rows.num_rows, vector.list_size))


def _rows_of(keys: np.ndarray, weight: np.ndarray | None, vectors: np.ndarray) -> Weights:
    return Weights(TABLE, {"dim": vectors.shape[1]}, table_parts("", keys, weight, vectors))


def table_parts(prefix: str, keys: np.ndarray, weight: np.ndarray | None, vectors: np.ndarray) -> list[Part]:
    """Return the keys, weights and vectors of a table as parts; ``prefix`` tells tables in one file apart."""
    parts = [Part(f"{prefix}key", "I64", keys.shape, np.ascontiguousarray(keys, np.int64).view(np.uint8))]
    if weight is not None:
        parts.append(Part.floats(f"{prefix}weight", weight))
    parts.append(Part.floats(f"{prefix}vector", vectors))
    return parts


def _in_order(weights: Weights, base: str | os.PathLike[str] | None) -> Weights:
    """Return the weights with the rows of every table sorted: first the keys of the base in its order, then new keys."""
    tables = [p.name.removesuffix("key") for p in weights.parts if p.dtype == "I64" and KEYS.fullmatch(p.name)]
    known = _known_keys(base, tables)
    moved: dict[str, np.ndarray] = {}
    for prefix in tables:
        keys = weights.part(f"{prefix}key").data.view(np.int64)
        order = _order(keys, known.get(prefix, NO_KEYS))
        if len(keys):
            moved |= {f"{prefix}{name}": order for name in ("key", "weight", "vector")}
    parts = [
        replace(p, data=p.data.reshape(len(moved[p.name]), -1)[moved[p.name]].reshape(-1)) if p.name in moved else p
        for p in weights.parts
    ]
    return replace(weights, parts=parts)


def _order(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    by_key = np.argsort(keys, kind="stable")
    ascending = keys[by_key]
    if (twice := ascending[1:][ascending[1:] == ascending[:-1]]).size:
        raise DataError(f"the exported table has key {twice[0]} twice; export it again")
    if not len(keys) or not len(known):
        return by_key
    at = np.minimum(np.searchsorted(ascending, known), len(keys) - 1)
    kept = at[ascending[at] == known]
    fresh = np.ones(len(keys), bool)
    fresh[kept] = False
    return np.concatenate([by_key[kept], by_key[fresh]])


def _known_keys(base: str | os.PathLike[str] | None, tables: list[str]) -> dict[str, np.ndarray]:
    if base is None:
        return {}
    parts = {p.name: p for p in read_weights(base).parts if p.dtype == "I64"}
    names = {prefix: f"{prefix}key" for prefix in tables}
    return {prefix: parts[name].data.view(np.int64) for prefix, name in names.items() if name in parts}


def _rows(found: Weights) -> pa.Table:
    names = [p.name for p in found.parts]
    columns: dict[str, Any] = {"key": pa.array(found.part("key").data.view(np.int64))}
    if "weight" in names:
        columns["weight"] = pa.array(found.part("weight").data)
    vector = found.part("vector")
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vector.data), vector.shape[1])
    return pa.table(columns)
