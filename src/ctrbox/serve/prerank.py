"""Answers POST /v1/prerank and POST /v1/cascade: the best K of up to 100,000 candidates, or of all ads, for a user.

    /v1/prerank   {"context": …, "candidates": …, "k": 400}  → {"positions": […], "scores": […], "missing": 0}
                  {"context": …, "k": 400}                   → {"candidates": {"ad_id": […]}, "scores": […], "index": "hnsw"}
    /v1/cascade   the same, and "objects" and "score" of /v1/score → the best K, scored by the model of the server

The score of pre-rank is the inner product of the vectors of user and ad, without the bias of the model. The best candidates come
first, and equal scores in the order of the candidates or, for all ads, of the view. The context of pre-rank consists of the
columns that the fields of the user read, and a candidate of those that the key of the ads reads. In a cascade, context and
candidates also have the columns that the served model reads. If a request has no candidates, the columns of the ads in the folder
are passed to the served model.

If a request names an ad that has no vector, the ad is left out and counted. The served model reads only the best K.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from ctrbox.columns.raw_values import RawColumn, brief
from ctrbox.engines.missed_keys import JoinCount
from ctrbox.errors import DataError, PlanError
from ctrbox.predict.prerank_folder import PrerankFolder
from ctrbox.predict.run_predictor import RunPredictor
from ctrbox.predict.two_tower_vectors import TowerVectors
from ctrbox.serve.fields_of_requests import RowReader
from ctrbox.serve.json_body import check_members, read_json
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request import RequestReader, count
from ctrbox.serve.view_versions import joins_together

MOST, BEST = 100_000, 400  # most candidates of a request; default of k
ASKED = ("context", "candidates", "k", "exact")
SENT_ON = ("objects", "score")
TIMES_AS_UTC = orjson.OPT_NAIVE_UTC


@dataclass(frozen=True)
class Best:
    """The best candidates of a request, best first."""

    positions: np.ndarray  # among the candidates of the request, or rows of the folder's ads
    scores: np.ndarray
    missing: int  # candidates without a vector
    index: str | None  # how the ads were searched; None: the request had candidates

    def json(self, columns: Mapping[str, list[Any]]) -> dict[str, Any]:
        if self.index is None:
            return {"positions": self.positions, "scores": self.scores, "missing": self.missing}
        return {"candidates": columns, "scores": self.scores, "index": self.index}


class Prerank:
    """The user tower of a run and the vectors of the ads. It is thread-safe.

    ``most``: largest number of candidates of one request. ``threads``: threads that compute the products of one request.
    """

    def __init__(self, run: RunPredictor, folder: PrerankFolder, *, most: int = MOST, threads: int = 1) -> None:
        self.folder, self.most, self.threads = folder, most, threads
        self._joined: list[JoinCount] = []  # in views that were replaced
        self.users, self.ads = TowerVectors(run, "user"), TowerVectors(run, "ad", folder.key)
        self.log_columns = list(run.plan.log.source.schema.names)
        self.named_by = self.ads.key_alone.columns
        both = [name for name in self.users.columns.names if name in self.named_by.names]
        if both:
            raise PlanError(
                f"column {both[0]!r} is read by a field of the user, and it is also the key of the ads, so a client cannot "
                "send it once per request; export the vectors with another key="
            )
        units = run.plan.time_units
        self._columns = {f.name: RawColumn(f, units.get(f.name)) for f in (*self.users.columns, *self.named_by)}
        self._readers: dict[tuple[str, ...], tuple[RowReader, RowReader]] = {}
        self._counting = threading.Lock()
        self.candidates = self.missing = 0  # of all requests
        ads = set(folder.ads.schema.names)
        if lost := [name for name in self.named_by.names if name not in ads]:
            raise DataError(
                f"{folder.path} is damaged: its ads have no column {lost[0]!r}, which identifies the ads in the model; make "
                "the folder again"
            )

    @property
    def kind(self) -> str:
        return "exact" if self.folder.index is None else "hnsw"

    def column(self, name: str) -> RawColumn:
        """Return how values of a column of pre-rank's context or candidates are read."""
        return self._columns[name]

    def joins(self) -> list[JoinCount]:
        return joins_together(self._joined, self.users.features.joins(), self.ads.key_alone.joins())

    def take_views(self, run: RunPredictor) -> None:
        """Compute users from the joined views of ``run``, the same run with other views, from the next request on."""
        users, ads, joined = TowerVectors(run, "user"), TowerVectors(run, "ad", self.folder.key), self.joins()
        self.users, self.ads, self._joined = users, ads, joined

    def told(self) -> dict[str, Any]:
        """Return the figures about the vectors for the status page."""
        found = self.folder
        return {"vectors": len(found.rank), "index": self.kind, "recall": found.recall, "recall_at": found.recall_at}

    # ---- a request

    def read(self, body: bytes, *, cascade: bool = False) -> dict[str, Any]:
        """Return the members of a request. Raise Refused if a member is unknown or has a wrong value."""
        try:
            given = read_json(body)
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {str(error)[:200]}") from None
        known = (*ASKED, *SENT_ON) if cascade else ASKED
        if type(given) is not dict:
            raise Refused(400, f"expected a JSON object with {', '.join(known)}, got {brief(given)}")
        check_members(given, known)
        if type(given.get("exact", False)) is not bool:
            raise Refused(400, f"exact must be true or false, got {brief(given['exact'])}")
        k = given.get("k", BEST)
        if type(k) is not int or k < 1:
            raise Refused(400, f"k must be a whole number of at least 1, got {brief(k)}")
        if k > self.most:
            raise Refused(413, f"k is {k:,}, but this server returns at most {self.most:,} candidates")
        rows = count(given["candidates"]) if "candidates" in given else 0
        if rows > self.most:
            raise Refused(413, f"the request has {rows:,} candidates; this server pre-ranks at most {self.most:,}")
        return given

    def best(self, given: Mapping[str, Any], also_known: tuple[str, ...] = ()) -> Best:
        """Return the best candidates. ``also_known``: columns that another model reads of this request."""
        once, each = self._readers_of(also_known)
        user = self.users.of(once.row(given.get("context", {})))[0]
        k, listed = given.get("k", BEST), "candidates" in given
        if listed:
            rows = each.rows(given["candidates"])
            places = self.folder.rank.file.find(self.ads.keys(rows))
            positions, scores = self.folder.rank.top_of(user, places, k, threads=self.threads)
            looked_at, missing = rows.num_rows, int((places < 0).sum())
        else:
            exact = bool(given.get("exact", False))
            positions, scores = self.folder.best(user, k, exact=exact, threads=self.threads)
            looked_at, missing = len(self.folder.rank), 0
        with self._counting:
            self.candidates += looked_at
            self.missing += missing
        index = None if listed else ("exact" if given.get("exact") else self.kind)
        return Best(positions, scores, missing, index)

    def ads_at(self, rows: np.ndarray, names: list[str] | None = None) -> dict[str, list[Any]]:
        """Return columns of the folder's ads as the values that a request would have."""
        table = self.folder.ads if names is None else self.folder.ads.select(names)
        found: dict[str, list[Any]] = orjson.loads(orjson.dumps(table.take(rows).to_pydict(), option=TIMES_AS_UTC))
        return found

    def sent_on(self, given: Mapping[str, Any], best: Best, reader: RequestReader) -> dict[str, Any]:
        """Return the request for the served model: the best candidates, and the context columns that the model reads."""
        context = {name: value for name, value in given.get("context", {}).items() if name in reader.known}
        chosen = best.positions.tolist()
        candidates: Any
        if best.index is not None:
            here = context if reader.context is None else reader.context
            names = [n for n in self.folder.ads.schema.names if n in reader.known and n not in here]
            candidates = self.ads_at(best.positions, names)
        elif isinstance(given["candidates"], dict):
            candidates = {name: [values[i] for i in chosen] for name, values in given["candidates"].items()}
        else:
            candidates = [given["candidates"][i] for i in chosen]
        return {
            "context": context,
            "candidates": candidates,
            **{name: given[name] for name in SENT_ON if name in given},
        }

    def _readers_of(self, also_known: tuple[str, ...]) -> tuple[RowReader, RowReader]:
        found = self._readers.get(also_known)
        if found is None:
            known = [*self.log_columns, *also_known]
            user, ad = self.users.columns, self.named_by
            once = RowReader(
                [self._columns[n] for n in user.names], user, known, dict.fromkeys(ad.names, "candidates"), "context"
            )
            each = RowReader(
                [self._columns[n] for n in ad.names], ad, known, dict.fromkeys(user.names, "context"), "candidates"
            )
            found = self._readers[also_known] = (once, each)
        return found
