"""Scores with an export of CTRBox. This file needs numpy, safetensors and onnxruntime (or torch), but not CTRBox.

    exported = Exported("folder")
    exported.scores(batch)                  {"score": …}, or the predictions by label

Every export has a copy of this file, which may be changed and used anywhere. ``batch`` has ``rows``, their number; ``dense``, the
dense columns (rows, columns) in float32; and ``sparse``, by field its 64-bit keys: ``values`` and ``offsets``, where row r has
the keys values[offsets[r]:offsets[r + 1]]. ``ctrbox.Plan.run`` and ``Plan.batches`` make such batches from raw rows.

The steps are: find the row of every key in the sorted keys of its table; give key 0, which means "no value", a row of zeros, and
a key that was never learned the row that the table would have begun with; pad the rows of fields with several keys; run the
network.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

VERSION = 1  # of export.json
GOLDEN = 0x9E3779B97F4A7C15


class Table:
    """Rows of a table: float32 (keys, width), the first-order weight first if the model reads one, then the vector."""

    def __init__(self, folder: Path, described: dict[str, Any]) -> None:
        parts = load_file(folder / described["file"])
        self.keys, self.rows = parts["keys"], parts["rows"]
        self.linear, self.dim = bool(described["linear"]), int(described["dim"])
        self.init, self.seed = float(described["init"]), int(described["seed"])

    def look_up(self, keys: np.ndarray) -> np.ndarray:
        """Return the rows (keys, width)."""
        found = self.initial(keys)
        if len(self.keys):
            at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            known = self.keys[at] == keys
            found[known] = self.rows[at[known]]
        found[keys == 0] = 0.0
        return found

    def initial(self, keys: np.ndarray) -> np.ndarray:
        """Return the initial rows of keys: weight 0, and a vector of hashes of the key and the seed of the table."""
        with np.errstate(over="ignore"):
            golden = np.uint64(GOLDEN)
            mix = finished(keys.astype(np.int64).view(np.uint64) ^ finished(np.array([self.seed], np.uint64) + golden))
            unit = np.float32(self.init * math.sqrt(3.0) / 8388608.0)
            rows = np.zeros((len(keys), self.linear + self.dim), np.float32)
            for pair in range((self.dim + 1) // 2):
                x = finished(mix + np.uint64((pair + 1) * GOLDEN & (1 << 64) - 1))
                halves = (x >> np.uint64(40), (x & np.uint64(0xFFFFFFFF)) >> np.uint64(8))
                for k, half in enumerate(halves[: self.dim - 2 * pair]):
                    rows[:, self.linear + 2 * pair + k] = (half.astype(np.int64) - 8388608).astype(np.float32) * unit
        return rows


def finished(x: np.ndarray) -> np.ndarray:
    """Return numbers whose bits all depend on all bits of x."""
    for shift in (32, 32):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(0x0E9846AF9B1A615D)
    return x ^ (x >> np.uint64(28))


def _check(path: Path, facts: dict[str, Any]) -> None:
    """Refuse a file that is missing or is not the one that was exported."""
    if not path.is_file():
        raise ValueError(f"{path} is missing; copy the whole folder of the export")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if path.stat().st_size != facts["bytes"] or digest.hexdigest() != facts["sha256"]:
        raise ValueError(
            f"{path} is damaged or was changed: its size or SHA-256 is not that in export.json; export it again"
        )


class Exported:
    """An export in a folder, ready to score."""

    def __init__(self, folder: str | Path) -> None:
        place = Path(folder)
        self.described: dict[str, Any] = json.loads((place / "export.json").read_text(encoding="utf-8"))
        if self.described.get("version") != VERSION:
            raise ValueError(
                f"{place / 'export.json'} has version {self.described.get('version')!r}, but this reader.py reads {VERSION}; "
                "export the run again"
            )
        for name in [self.described["network"], *(one["file"] for one in self.described["tables"])]:
            _check(place / name, self.described["files"][name])
        self.tables = [Table(place, one) for one in self.described["tables"]]
        self.fields: dict[str, dict[str, Any]] = self.described["fields"]
        self.outputs = [one["name"] for one in self.described["outputs"]]
        network = str(place / self.described["network"])
        if self.described["network_format"] == "onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
            self._run = lambda given: session.run(self.outputs, given)
        else:
            import torch

            module = torch.export.load(network).module()
            self._run = lambda given: [t.numpy() for t in module(*map(torch.from_numpy, given.values()))]

    def scores(self, batch: Any) -> dict[str, np.ndarray]:
        """Return the score of each row, or the predictions of each label, by the names of the outputs."""
        if not batch.rows:
            return {name: np.zeros(0, np.float32) for name in self.outputs}
        return dict(zip(self.outputs, self._run(self.inputs(batch)), strict=True))

    def inputs(self, batch: Any) -> dict[str, np.ndarray]:
        """Return the tensors that the network reads, by name and in its order."""
        found: dict[str, np.ndarray] = {}
        for one in self.described["inputs"]:
            kind, _, field = one["name"].partition(".")
            if kind == "dense":
                found[one["name"]] = np.ascontiguousarray(batch.dense, np.float32)
                if not np.isfinite(found[one["name"]]).all():
                    raise ValueError("a dense column contains a NaN or an infinity; expected finite numbers")
            elif kind == "key":
                found[one["name"]] = np.array(batch.sparse[field].values)
            elif kind == "rows":
                found |= self._rows(field, batch.sparse[field])
        return found

    def _rows(self, field: str, keys: Any) -> dict[str, np.ndarray]:
        about = self.fields[field]
        table = self.tables[about["table"]]
        values, offsets = np.asarray(keys.values), np.asarray(keys.offsets)
        counts = np.diff(offsets)
        if about["keys"] == "one":
            if (counts != 1).any():
                raise ValueError(
                    f"field {field!r} has rows with no key or several keys; expected exactly one key per row"
                )
            return {f"rows.{field}": table.look_up(values[offsets[0] : offsets[-1]])}
        if about["longest"]:  # of a history that is longer, the last keys are read
            counts = np.minimum(counts, about["longest"])
        longest = max(1, int(counts.max()))
        row = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        found = np.zeros((len(counts), longest, table.linear + table.dim), np.float32)
        found[row, place] = table.look_up(values[np.repeat(offsets[1:] - counts, counts) + place])
        return {f"rows.{field}": found, f"count.{field}": counts.astype(np.int64)}
