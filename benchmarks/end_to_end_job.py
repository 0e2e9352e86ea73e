"""The staged job: three stages with Parquet between them, as MapReduce does, and what the last of them must hold.

    raw ─► clean/{impressions,users,ads,basic} ─► joined/ ─► features/ ─► training

`features/` has one column a feature: `instance_id` int64, `label` and the dense ones float32, a sparse field int64 keys,
one or a list of them. All fields share one table of vectors when trained, so a key must also say its field: hashes are
seeded by the field's number. The rows must be in the order of the log, because training is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.extract_job import DENSE, RAGGED, SCALAR, SPARSE, Chunk, kept_ids

STAGES = ["clean", "join", "extract"]
SEED = {name: number for number, name in enumerate(SPARSE, 1)}
COLUMNS = ["instance_id", "label", *DENSE, *SCALAR, *RAGGED]
FILLS: dict[str, dict[str, Any]] = {  # what a null becomes; the basic ones, and an id that is not in its view: the same
    "impressions": {"query": "", "position": 0, "price": 0.0},
    "context": {"city": "none", "app": "none", "slot": -1, "depth": 0.0},
    "users": {"age": 0, "gender": "unknown", "country": "none", "interests": "", "history": ""},
    "ads": {"advertiser_id": 0, "campaign_id": 0, "title": "", "category": "", "bid": 0.0, "keywords": ""},
}
Stage = Callable[[Path, Path], None]  # reads raw views under the first, earlier stages under the second, writes there


def folder(work: Path, stage: str) -> Path:
    """Where a stage writes."""
    return work / {"clean": "clean", "join": "joined", "extract": "features"}[stage]


def nbytes(path: Path) -> int:
    """Bytes of the data files below a folder; checksums and success marks are not counted."""
    return sum(file.stat().st_size for file in path.rglob("*.parquet") if not file.name.startswith((".", "_")))


def emptied(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def files(work: Path) -> list[str]:
    """The files of the last stage in the order of the log: by the first instance id, which their footers know.

    A tool may number its files as it likes; it need not sort rows across them a second time.
    """

    def first(file: Path) -> int:
        footer = pq.read_metadata(file)
        at = footer.schema.names.index("instance_id")
        return int(min(footer.row_group(group).column(at).statistics.min for group in range(footer.num_row_groups)))

    found = sorted(folder(work, "extract").glob("*.parquet"))
    return [str(file) for file in sorted((f for f in found if pq.read_metadata(f).num_rows), key=first)]


def plan(work: Path) -> Any:
    """The last stage as training reads it: keys as they are."""
    import ctrbox as cb
    from ctrbox import col

    features = cb.FeatureSet(
        label=col("label"),
        sparse={name: col(name).fill([] if name in RAGGED else 0).as_key() for name in SPARSE},
        dense={name: col(name).fill(0.0) for name in DENSE},
    )
    return cb.compile(cb.View(files(work), key="instance_id"), features, device="cpu")


def chunks(work: Path) -> Iterator[Chunk]:
    """The last stage read without CTRBox, for the check."""
    for path in files(work):
        table = pq.read_table(path, columns=COLUMNS).combine_chunks()
        one = np.arange(len(table) + 1)
        sparse = {name: (table[name].to_numpy(), one) for name in SCALAR}
        for name in RAGGED:
            column = table[name].chunk(0).cast(pa.large_list(pa.int64()))
            if column.null_count:
                raise SystemExit(f"{path}: {name} has {column.null_count} null lists; expected empty ones")
            sparse[name] = column.flatten().to_numpy(), column.offsets.to_numpy() - column.offsets[0].as_py()
        dense = np.column_stack([table[name].to_numpy() for name in DENSE])
        yield Chunk(table["label"].to_numpy(), dense, sparse, table["instance_id"].to_numpy())


def faults(root: Path, work: Path) -> list[str]:
    """What would make training differ though every row is right: their order, or fields that share keys."""
    found = []
    read = list(chunks(work))
    ids = np.concatenate([chunk.ids for chunk in read if chunk.ids is not None])
    if not np.array_equal(ids, kept_ids(root)):
        found.append("rows are not those of the log in its order")
    by_field = [np.unique(np.concatenate([chunk.sparse[name][0] for chunk in read])) for name in SPARSE]
    together = len(np.unique(np.concatenate(by_field)))
    if together != sum(map(len, by_field)):
        found.append(f"{sum(map(len, by_field)) - together} keys belong to several fields")
    if any(0 in keys for keys in by_field):
        found.append("key 0, the null slot, is used")
    return found
