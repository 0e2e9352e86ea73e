"""Makes the answer to one request: the scores of one label, or those of several labels by name.

    one label         {"version": 2, "scores": [0.04, …]}                          output `score`
    several labels    {"version": 2, "scores": {"click": [0.04, …], …}}            an output for each label
    with a score      … "score": [0.01, …], "ranking": [1, 0, …]                   outputs `score` and `ranking` beside them

A request to a model of several labels may ask for a score, an expression of the labels (`ctrbox.predict.score_expression`). Then
``ranking`` has the positions of the candidates, the one with the highest score first and equal ones in their order. A candidate
that a filter of the plan drops has no score (null, NaN) and is not in the ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrbox.errors import DataError
from ctrbox.predict.score_expression import ScoreExpression

SCORE, RANKING = "score", "ranking"  # names of outputs in the Open Inference Protocol


@dataclass(frozen=True)
class Answered:
    version: int
    scores: np.ndarray | dict[str, np.ndarray]  # float32; of several labels by name
    score: np.ndarray | None = None  # float32; of the expression that the request asked for
    ranking: np.ndarray | None = None  # int32
    views: bytes = b""  # versions of the joined views, as the response header says them

    @staticmethod
    def of(
        predictions: np.ndarray,
        version: int,
        labels: Sequence[str],
        asked: ScoreExpression | None,
        views: bytes = b"",
    ) -> Answered:
        """Return the answer. ``predictions``: (rows,) for one label; (rows, labels) in float64 for several labels."""
        if not labels:
            return Answered(version, predictions, views=views)
        score = ranking = None
        if asked is not None:
            exact = asked.of_predictions(predictions, "candidate")
            score = exact.astype(np.float32)
            ranking = ranked(score)
        return Answered(version, by_label(predictions, labels), score, ranking, views)

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"version": self.version, "scores": self.scores}
        return found if self.score is None else {**found, SCORE: self.score, RANKING: self.ranking}

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the tensors of the Open Inference Protocol by name."""
        found = dict(self.scores) if isinstance(self.scores, dict) else {SCORE: self.scores}
        if self.score is not None and self.ranking is not None:
            found |= {SCORE: self.score, RANKING: self.ranking}
        return found


def by_label(predictions: np.ndarray, labels: Sequence[str]) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(predictions[:, k], np.float32) for k, name in enumerate(labels)}


def ranked(score: np.ndarray) -> np.ndarray:
    """Return the positions of the scores that are numbers, the highest first and equal ones in their order."""
    order = np.argsort(-score, kind="stable")  # NaN comes last
    return order[: len(order) - int(np.isnan(score).sum())].astype(np.int32)


def names_of_outputs(labels: Sequence[str], score: str | None) -> tuple[str, ...]:
    """Return the names of the tensors that answer a request; ``score``: the expression that it asks for."""
    if not labels:
        return (SCORE,)
    if score is None:
        return tuple(labels)
    for name in (SCORE, RANKING):
        if name in labels:
            raise DataError(
                f"this model has a label {name!r}, and the result of the score expression would have the same name; ask for "
                "it by POST /v1/score, whose answer has the labels under scores"
            )
    return (*labels, SCORE, RANKING)


def described_outputs(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the outputs that every answer of a model has, as its metadata names them."""
    return [{"name": name, "datatype": "FP32", "shape": [-1]} for name in names_of_outputs(labels, None)]
