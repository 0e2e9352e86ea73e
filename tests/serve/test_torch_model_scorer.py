"""Parts of the scorer by themselves: what a kept context weighs, keys of one per row, and rows that share one context."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.errors import DataError
from ctrbox.evaluate.calibration_maps import Calibration, PlattMap
from ctrbox.models.inputs import Pooled
from ctrbox.serve.served_models import as_scores, no_scores, spread
from ctrbox.serve.torch_model_scorer import Found, ModelScorer, expanded, single_keys


def batch_of(rows: int, dense: Any = None, **fields: list[list[int]]) -> Batch:
    sparse = {
        name: Ragged(np.array([k for keys in lists for k in keys], np.int64), np.cumsum([0, *map(len, lists)]))
        for name, lists in fields.items()
    }
    values = np.zeros((rows, 0), np.float32) if dense is None else np.array(dense, np.float32)
    schema = Schema(tuple(Field(name, name, False) for name in fields), (), False, False, False)
    return Batch(schema, rows, None, values, sparse, None)


def test_a_kept_context_weighs_its_tensors_512_bytes_each_and_what_the_model_keeps() -> None:
    vectors, linear, items = torch.zeros(1, 3, 4), torch.zeros(1, 3), torch.zeros(1, 5, 4, dtype=torch.float64)
    lengths = torch.zeros(1)
    pools = [Pooled(("a", "b", "c"), linear, vectors), Pooled(("d",), None, vectors[:, :1])]
    found = Found(pools, {"past": (items, lengths)}, frozenset())
    tensors = 4 * 12 + 4 * 3 + 4 * 4 + 8 * 20
    assert found.bytes == tensors + 4 * 512
    found.kept.update(one=SimpleNamespace(bytes=1000), two="text")
    assert found.bytes == tensors + 4 * 512 + 1000
    assert Found([], {}, frozenset()).bytes == 0


def test_a_context_is_found_again_while_no_table_that_lacked_keys_has_changed() -> None:
    tables = [SimpleNamespace(changes=3), SimpleNamespace(changes=5)]
    found = Found([], {}, frozenset(), ((tables[0], 3), (tables[1], 5)))  # type: ignore[arg-type]
    assert found.fresh
    tables[1].changes = 6
    assert not found.fresh
    assert Found([], {}, frozenset()).fresh


def test_keys_of_one_per_row_come_field_after_field() -> None:
    batch = batch_of(2, a=[[1], [2]], b=[[3], [4]], c=[[5, 6], []], d=[[7], []])
    assert single_keys(batch, ["b"]).tolist() == [3, 4]
    assert single_keys(batch, ["b", "a"]).tolist() == [3, 4, 1, 2]
    with pytest.raises(DataError, match=r"^field 'd' has rows with no key or several keys, but its schema says"):
        single_keys(batch, ["a", "d"])


def test_one_context_stands_for_all_rows_without_a_copy() -> None:
    one = Pooled(("a", "b"), torch.arange(2.0)[None], torch.arange(6.0).view(1, 2, 3))
    many = expanded(one, 5)
    assert many.fields == ("a", "b")
    assert (many.vectors.shape, many.linear.shape) == ((5, 2, 3), (5, 2))  # type: ignore[union-attr]
    assert many.vectors.data_ptr() == one.vectors.data_ptr()
    assert bool((many.vectors[4] == one.vectors[0]).all())
    assert expanded(Pooled(("a",), None, one.vectors), 2).linear is None


def dense_scorer(
    context: list[tuple[str, int]], candidates: list[tuple[str, int]], whole: list[tuple[str, int]]
) -> Any:
    names = [name if width == 1 else f"{name}[{k}]" for name, width in whole for k in range(width)]
    split = SimpleNamespace(
        context_features=SimpleNamespace(sparse=(), dense=context),
        candidate_features=SimpleNamespace(sparse=(), dense=candidates),
        schema=SimpleNamespace(dense=whole, dense_width=len(names), dense_names=names),
    )
    model = SimpleNamespace(sources=[], shift=0.0, calibration=None, reads=None, tasks=())
    return ModelScorer(model, split, None)  # type: ignore[arg-type]


def test_dense_columns_of_context_and_candidates_come_in_the_order_of_the_model() -> None:
    scorer = dense_scorer(
        [("age", 1), ("where", 2)],
        [("image", 3), ("price", 1)],
        [("price", 1), ("where", 2), ("image", 3), ("age", 1)],
    )
    context = batch_of(1, [[1, 2, 3]])
    candidates = batch_of(2, [[4, 5, 6, 7], [8, 9, 10, 11]])
    assert scorer._dense(context, candidates).tolist() == [[7, 2, 3, 4, 5, 6, 1], [11, 2, 3, 8, 9, 10, 1]]
    candidates.dense[1, 2] = np.inf
    with pytest.raises(DataError, match=r"^dense column 'image\[2\]' of candidate 1 is inf; expected a finite number$"):
        scorer._dense(context, candidates)


def scored(logits: list[float], shift: float = 0.0, calibration: Calibration | None = None, **fields: Any) -> Any:
    """Score candidates whose logits are known; fields named c_… are the context's."""
    scorer = dense_scorer([], [], [])
    scorer.click_model = SimpleNamespace(shift=shift, calibration=calibration, tasks=())
    scorer._logits = lambda *given: np.array(logits, np.float32)
    theirs = {name: keys for name, keys in fields.items() if not name.startswith("c_")}
    mine = {name: keys for name, keys in fields.items() if name.startswith("c_")}
    found = Found([], {}, frozenset({(0, 1), (0, 2)}))
    return scorer.score(batch_of(1, **mine), found, batch_of(len(logits), **theirs), {})


def sigmoid(logit: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(logit, np.float64)))


def test_scores_are_the_probabilities_of_shifted_and_calibrated_logits() -> None:
    scores, without, counted = scored([-1.0, 0.0, 2.0, -700.0])
    assert scores == pytest.approx(sigmoid([-1, 0, 2, -700]), rel=1e-6)
    assert (scores.dtype, without, counted) == (np.float32, 2, ())
    assert scored([0.5], shift=-1.5)[0] == pytest.approx(sigmoid([-1.0]), rel=1e-6)
    line = Calibration("platt", PlattMap(2.0, 1.0))
    assert scored([0.5, -1], shift=1.0, calibration=line)[0] == pytest.approx(sigmoid([4.0, 1.0]), rel=1e-6)
    with pytest.raises(DataError, match=r"^the model's output for candidate 1 is not finite"):
        scored([0.0, np.nan, np.inf])


@pytest.mark.parametrize("side", ["candidates", "context"])
def test_a_calibration_by_field_reads_the_field_where_it_is(side: str) -> None:
    maps = (PlattMap(1.0, 1.0), PlattMap(1.0, 2.0))
    by = "ad" if side == "candidates" else "c_user"
    calibration = Calibration("platt", PlattMap(1.0, 0.0), by, (7, 9), maps)
    scores = scored([0.0, 0.0, 0.0], calibration=calibration, ad=[[9], [8], [7]], c_user=[[9]])[0]
    expected = [2.0, 0.0, 1.0] if side == "candidates" else [2.0, 2.0, 2.0]
    assert scores == pytest.approx(sigmoid(expected), rel=1e-6)


def test_candidates_that_a_filter_dropped_have_no_score() -> None:
    def of(*index: int) -> Any:
        return SimpleNamespace(index=np.array(index) if index else None)

    one = np.array([0.5, 0.25], np.float32)
    assert spread(one, of(), 2) is one
    found = spread(one, of(0, 2), 3)
    assert (found.dtype, found.shape) == (np.float32, (3,))
    assert np.array_equal(found, [0.5, np.nan, 0.25], equal_nan=True)
    several = spread(np.array([[0.5, 2.0]]), of(1), 2)
    assert several.dtype == np.float64
    assert np.array_equal(several, [[np.nan] * 2, [0.5, 2.0]], equal_nan=True)
    tasks: Any = [None, None]
    assert (no_scores(tasks).shape, no_scores(()).shape, no_scores(()).dtype) == ((0, 2), (0,), np.float32)
    assert as_scores(np.ones((1, 2)), tasks).dtype == np.float64
    assert as_scores(np.ones(1), ()).dtype == np.float32
