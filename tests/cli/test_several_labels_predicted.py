"""`ctrbox predict` with several labels: a column for each, and a score that combines them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.cli import after_training as learning
from ctrbox.cli.terminal import Mistake
from tests.train.test_several_labels import LABELS, world


def trained(place: Path, labels: dict[str, object], key: str = "id") -> Path:
    pq.write_table(world(300).rename_columns({"id": key}), place / "log.parquet")
    log = cb.View(str(place / "log.parquet"), key=key)
    plan = cb.compile(log, cb.FeatureSet(labels=labels, sparse={"user": col("user").key()}), threads=1)
    torch.manual_seed(1)
    model = cb.models.build("SharedBottom", plan.schema, {"dim": 4, "hidden": [8]})
    cb.Trainer(model, cb.MemoryTable(4), threads=1).fit(plan, batch_size=100, out=place / "run", progress=False)
    return place / "run"


def test_a_score_is_written_beside_the_labels_with_the_bits_of_python(tmp_path: Path) -> None:
    run = trained(tmp_path, LABELS)
    log, out = str(tmp_path / "log.parquet"), tmp_path / "p.parquet"
    learning.predict(str(run), log, str(out), score="click*convert + 0 * value", allow_views=[str(tmp_path)])  # type: ignore[arg-type]
    found = pq.read_table(out)
    assert found.column_names == ["id", "click", "convert", "value", "score"]
    product = found["click"].to_numpy() * found["convert"].to_numpy() + 0.0 * found["value"].to_numpy()
    assert np.array_equal(found["score"].to_numpy(), product)
    loaded = cb.Run.load(run, allow_views=[str(tmp_path)])
    scores = loaded.predict(world(300), score="click * convert + 0 * value")
    assert np.array_equal(found["score"].to_numpy().astype(np.float32), scores)


def test_a_score_that_cannot_be_written_is_refused_before_anything_is(tmp_path: Path) -> None:
    run = trained(tmp_path, {"score": col("clicked"), "convert": col("converted")}, key="convert_id")
    log, out = str(tmp_path / "log.parquet"), tmp_path / "p.parquet"
    for score, message in (
        (
            "convert",
            "--score writes a column named 'score', but the run has a label with this name; remove --score, "
            "or rename the label in the job and train again",
        ),
        ("convert *", "--score: the score 'convert \\*' cannot be read: expected a label, a number or \\("),
        (
            "1 / (convert - convert)",
            "--score writes a column named 'score', but the run has a label with this name; "
            "remove --score, or rename the label in the job and train again",
        ),
    ):
        with pytest.raises(Mistake, match=message):
            learning.predict(str(run), log, str(out), score=score, allow_views=[str(tmp_path)])  # type: ignore[arg-type]
        assert not out.exists()


@pytest.mark.parametrize(
    ("key", "labels", "scored", "told"),
    [
        (["click"], ["click", "convert"], False, "key column 'click' of the log has the same name as a label"),
        (
            ["probability"],
            [],
            False,
            r"key column 'probability' of the log has the same name as a column of the probability, and both would be columns of "
            r"the predictions; rename the key column and train again$",
        ),
        (["id", "score"], ["click"], True, "key column 'score' of the log has the same name as a column of the score"),
        (["score"], ["score"], True, "key column 'score' of the log has the same name as a label"),
        (
            ["id"],
            ["click", "score"],
            True,
            "--score writes a column named 'score', but the run has a label with this "
            "name; remove --score, or rename the label in the job and train again",
        ),
        (["score"], ["click"], False, ""),
        (["id"], ["score"], False, ""),
        (["id"], ["click"], True, ""),
    ],
)
def test_no_two_columns_of_predictions_have_one_name(
    key: list[str], labels: list[str], scored: bool, told: str
) -> None:
    tasks = [SimpleNamespace(name=name) for name in labels]
    run = SimpleNamespace(plan=SimpleNamespace(schema=SimpleNamespace(tasks=tasks), log=SimpleNamespace(key=key)))
    score: Any = object() if scored else None
    if told:
        with pytest.raises(Mistake, match=f"^{told}"):
            learning.Columns(run, score)
    else:
        assert learning.Columns(run, score).labels == labels
