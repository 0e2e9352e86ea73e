"""Writes and opens the folder of pre-rank: the vector of every ad of a view, the ads' columns, and optionally an index.

    ads.prerank/
      prerank.json     sealed: checksum of the weights that made the vectors, columns, size and SHA-256 of the other files,
                       index and its recall
      vectors.ctrvec   the vectors, by key; row n is the ad in row n of ads.arrow
      ads.arrow        the columns of the log that the ads' fields read, and others on request: what an answer names an ad by
      index.faiss      with ``index="hnsw"``: a graph over the vectors

The folder is written completely or not at all. Opening it fails if a file is missing or damaged, or if the vectors were made with
another training run or another plan.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import whole
from ctrbox.columns.raw_values import first_line
from ctrbox.embed.embedder import Floats
from ctrbox.embed.vectors.nearest_index import NearestIndex
from ctrbox.embed.vectors.prerank import PreRank
from ctrbox.embed.vectors.vector_file import VectorFile
from ctrbox.embed.vectors.write_vector_file import write_vectors
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.sealed_json import read_sealed, sealed
from ctrbox.files.untrusted_files import open_regular
from ctrbox.files.urls import local_path
from ctrbox.predict.run_predictor import RunPredictor
from ctrbox.predict.two_tower_vectors import TowerVectors, rows_of_view, seal_of_towers, two_tower_of, vectors_of_view
from ctrbox.views.view import View

FACTS, VECTORS, ADS, INDEX = "prerank.json", "vectors.ctrvec", "ads.arrow", "index.faiss"
INDEXES = ("exact", "hnsw")
ASKED = 200  # users of the log whose vectors measure the recall of an index


@dataclass(frozen=True)
class PrerankFolder:
    """Vectors, columns and index of the ads. ``PrerankFolder.open("ads.prerank", run)`` checks that they are of this run."""

    path: Path
    rank: PreRank
    ads: pa.Table
    key: str  # the field whose key names an ad
    index: NearestIndex | None
    recall: float | None  # of the index, measured when it was made
    recall_at: int

    @staticmethod
    def open(folder: str | os.PathLike[str], run: RunPredictor) -> PrerankFolder:
        place = local_path(folder, "a pre-rank folder")
        facts = read_sealed(place / FACTS, "pre-rank folder (`ctrbox vectors prerank` makes one)")
        if facts.get("towers") != seal_of_towers(run) or facts.get("fingerprint") != run.click_model.schema.fingerprint:
            raise DataError(
                f"the vectors of {place} were made by another training run than the served one, or with another plan; make "
                "the folder again from this run: ctrbox vectors prerank RUN VIEW -o FOLDER"
            )
        files, key = facts.get("files"), facts.get("key")
        indexed = isinstance(files, dict) and INDEX in files
        if not isinstance(files, dict) or set(files) - {INDEX} != {VECTORS, ADS} or not isinstance(key, str):
            raise DataError(
                f"{place / FACTS} is damaged: it does not describe the files of a pre-rank folder; make the folder again"
            )
        for name, expected in files.items():
            if _described(place / name) != expected:
                raise DataError(
                    f"{place / name} is damaged: its size or checksum is not that in {FACTS}; make the folder again"
                )
        rank = PreRank(place / VECTORS)
        try:
            # Not mapped: if the file were truncated later, answers would name other ads, or SIGBUS would end the process.
            ads = feather.read_table(place / ADS, memory_map=False)
            ads.validate(full=True)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{place / ADS} is damaged: {first_line(error)}") from None
        if len(ads) != len(rank) or rank.dim != two_tower_of(run).config["vector"]:
            raise DataError(
                f"{place} is damaged: {len(rank):,} vectors of {rank.dim} numbers for {len(ads):,} ads; expected "
                f"{two_tower_of(run).config['vector']} numbers"
            )
        recall, at = facts.get("recall"), facts.get("recall_at")
        index = NearestIndex.open(place / INDEX, len(rank), rank.dim) if indexed else None
        return PrerankFolder(place, rank, ads, key, index, recall, at if isinstance(at, int) else 0)

    def best(self, user: Floats, k: int, *, exact: bool = False, threads: int = 1) -> tuple[np.ndarray, Floats]:
        """Return the rows of the best ``k`` ads, best first, and their scores: by the index unless ``exact``."""
        vector = self.rank.checked(user)
        if self.index is None or exact:
            return self.rank.best(vector, k, threads=threads)
        return self.rank.best(vector, k, among=self.index.search(vector, min(k, len(self.rank))))


def export_prerank(
    run: RunPredictor,
    view: View | str,
    folder: str | os.PathLike[str],
    *,
    key: str | None = None,
    columns: Sequence[str] = (),
    index: str = "exact",
    recall_at: int = 400,
) -> PrerankFolder:
    """Write the folder that `ctrbox serve --prerank` needs to answer requests: a vector for every ad of ``view``.

    ``run``      run of a ``TwoTower`` model
    ``view``     the name of a view that the plan of the run joins, or any view with the columns that the ads' fields read
    ``key``      field whose key identifies an ad; default: the first field of the ads
    ``columns``  additional columns of the view to store, such as those that a ranking model needs of a candidate
    ``index``    "exact" searches all vectors. "hnsw" also makes a graph (``pip install 'ctrbox[prerank]'``). It then
                 measures, for users of the run's log, which share of the exact best ``recall_at`` ads the graph finds, and
                 stores this share
    """
    if index not in INDEXES:
        raise PlanError(f"index must be exact or hnsw, got {index!r}{nearest(str(index), INDEXES)}")
    whole("recall_at", recall_at, 1, 100_000)
    tower = TowerVectors(run, "ad", key)
    name = view if isinstance(view, str) else view.name
    table = rows_of_view(view, run.plan, tower, tuple(columns))
    keys, vectors = vectors_of_view(table, tower, name)
    if not len(keys):
        raise DataError(f"view {name!r} has no rows, so there is nothing to pre-rank")
    place = local_path(folder, "a pre-rank folder")
    facts: dict[str, Any] = {
        "towers": seal_of_towers(run),
        "fingerprint": run.click_model.schema.fingerprint,
        "key": tower.key,
        "rows": len(keys),
    }
    with written_aside(place, folder=True) as aside:
        aside.mkdir()
        write_vectors(aside / VECTORS, {"key": keys, "vector": vectors}, key="key", vector="vector")
        feather.write_feather(table.combine_chunks(), str(aside / ADS), compression="uncompressed")
        names = [VECTORS, ADS]
        if index == "hnsw":
            graph = NearestIndex.of(vectors)
            graph.write(aside / INDEX)
            names.append(INDEX)
            facts["recall_at"] = at = min(recall_at, len(keys))
            facts["recall"] = recall_of(graph, PreRank(VectorFile(aside / VECTORS)), users_of_log(run), at)
        facts["files"] = {one: _described(aside / one) for one in names}
        (aside / FACTS).write_text(sealed(facts))
    return PrerankFolder.open(place, run)


def users_of_log(run: RunPredictor, most: int = ASKED) -> Floats:
    """Return the vectors of users in the first rows of the run's log, at most ``most``, each different vector once."""
    model = two_tower_of(run)
    for batch in run.plan.batches(16_384):
        return np.unique(run.click_model.answers(batch, model.user_vectors), axis=0)[:most]
    raise DataError("the log of the run has no rows, so the recall of an index cannot be measured")


def recall_of(index: NearestIndex, rank: PreRank, users: Floats, k: int) -> float:
    """Return the share of the exact best ``k`` rows that the index finds, over all ``users``."""
    found = 0
    for user in users:
        exact, _ = rank.best(user, k)
        mine, _ = rank.best(user, k, among=index.search(rank.checked(user), k))
        found += len(np.intersect1d(exact, mine))
    return found / (len(users) * k)


def _described(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"bytes": file.tell(), "sha256": digest}
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
