"""The progress of a Deep FFM: losses and AUC of its learning, as figures, text and files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from ctrbox import _native
from ctrbox.cli.online import told
from ctrbox.ffm.progressive_validation import CLIP, HEAD, Progress, auc
from ctrbox.loop.status import status


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 5))
@settings(deadline=None)
def test_auc_equals_sklearns_with_ties_and_weights(seed: int, rows: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows).astype(np.float32)
    predictions = (random.integers(0, steps + 1, rows) / steps).astype(np.float32)
    weights = random.integers(1, 4, rows).astype(np.float32)
    for weighted in (weights, None):
        met = auc(labels, predictions, weighted)
        if 0 < labels.sum() < rows:
            assert met == pytest.approx(roc_auc_score(labels, predictions, sample_weight=weighted))
        else:
            assert math.isnan(met)


def test_windows_do_not_depend_on_pieces() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 1000).astype(np.float32)
    predictions = np.clip(random.normal(0.4 + 0.2 * labels, 0.2), 0.01, 0.99).astype(np.float32)
    shown: list[str] = []
    whole, pieces = Progress(100), Progress(100, shown.append)
    whole.add(labels, predictions)
    for part in np.array_split(np.arange(1000), 37):
        pieces.add(labels[part], predictions[part])
    assert len(whole.windows) == 10
    for a, b in zip(whole.windows, pieces.windows, strict=True):
        assert a.examples == b.examples
        assert a.auc == b.auc
        assert a.loss == pytest.approx(b.loss)
    last = slice(900, 1000)
    assert whole.auc == pytest.approx(roc_auc_score(labels[last], predictions[last]))
    assert whole.windows[-1].loss == pytest.approx(log_loss(labels[last], predictions[last]))
    assert whole.loss == pytest.approx(log_loss(labels, predictions))
    assert whole.constant == pytest.approx(log_loss(labels, np.full(1000, labels.mean())))
    assert shown == [HEAD, *(str(pieces.windows[n]) for n in (0, 1, 3, 7))]
    assert pieces.table().count("\n") == 11


def test_nothing_seen_is_nan() -> None:
    empty = Progress()
    assert all(math.isnan(v) for v in (empty.loss, empty.constant, empty.auc))
    empty.add(np.zeros(0, np.float32), np.zeros(0, np.float32))
    assert empty.examples == 0


def test_progress_goes_on_from_its_state() -> None:
    rng = np.random.default_rng(5)
    labels = (rng.random(2_500) < 0.3).astype(np.float32)
    predictions = rng.random(2_500).astype(np.float32)
    weights = rng.integers(1, 3, 2_500).astype(np.float32)
    for weighted in (None, weights):
        whole, first, again = Progress(window=400), Progress(window=400), Progress()
        whole.add(labels, predictions, weighted)
        first.add(labels[:1_111], predictions[:1_111], None if weighted is None else weighted[:1_111])
        numbers, arrays = first.state()
        again.restore(json.loads(json.dumps(numbers)), arrays)
        again.add(labels[1_111:], predictions[1_111:], None if weighted is None else weighted[1_111:])
        assert again.examples == whole.examples
        assert [w.examples for w in again.windows] == [w.examples for w in whole.windows]
        for name in ("loss", "constant", "auc", "calibration", "weighted_loss", "weighted_auc", "weighted_calibration"):
            np.testing.assert_allclose(getattr(again, name), getattr(whole, name), rtol=1e-12)
        np.testing.assert_allclose(
            [[w.loss, w.auc, w.predicted, w.clicked, w.weighted_auc] for w in again.windows],
            [[w.loss, w.auc, w.predicted, w.clicked, w.weighted_auc] for w in whole.windows],
            rtol=1e-12,
        )


def test_calibration_is_of_the_last_window() -> None:
    progress = Progress(window=4)
    progress.add(np.ones(4, np.float32), np.full(4, 0.9, np.float32))
    progress.add(np.array([1, 0, 0, 0, 1], np.float32), np.full(5, 0.2, np.float32))
    assert progress.calibration == pytest.approx((0.2, 0.25))


def test_plain_figures_ignore_weights_and_weighted_ones_are_named() -> None:
    random = np.random.default_rng(3)
    labels = (random.random(600) < 0.3).astype(np.float32)
    predictions = random.random(600).astype(np.float32)
    weights = np.where(labels > 0, 5, 1).astype(np.float32)
    plain, weighted = Progress(200), Progress(200)
    plain.add(labels, predictions)
    weighted.add(labels, predictions, weights)
    for name in ("loss", "auc", "constant", "calibration", "clicks"):
        assert getattr(weighted, name) == getattr(plain, name)
    assert weighted.clicks == int(labels.sum())
    assert weighted.weighted_loss == pytest.approx(
        log_loss(labels, predictions.astype(np.float64), sample_weight=weights)
    )
    last = slice(400, 600)
    expected = roc_auc_score(labels[last], predictions[last], sample_weight=weights[last])
    assert weighted.weighted_auc == pytest.approx(expected)
    assert weighted.weighted_calibration[1] == pytest.approx(np.average(labels[last], weights=weights[last]))
    assert math.isnan(plain.weighted_loss)
    assert math.isnan(plain.weighted_auc)
    assert "weighted" not in status(plain)
    assert status(weighted)["weighted"]["auc"] == weighted.weighted_auc
    assert status(weighted)["calibration"]["clicked"] == plain.calibration[1]


def test_the_last_line_says_of_which_examples_its_auc_is(capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    predictions = random.random(250).astype(np.float32)
    labels = (random.random(250) < predictions).astype(np.float32)
    progress = Progress(window=100)
    names = ["duplicates", "late_impressions", "late_clicks", "lone_clicks", "outside_clicks", "future"]
    counts = dict.fromkeys([*names, "dropped_by_filters", "left_out", "refused_chunks"], 0)
    for upto, examples, said in ((60, 60, "of all examples"), (250, 100, "of the last complete window (100 examples)")):
        progress.add(labels[progress.examples : upto], predictions[progress.examples : upto])
        found = status(progress, counts=counts, learned=upto, unlearned=0, held=0, version=1)
        assert (found["examples"], found["auc_examples"]) == (upto, examples)
        told(found)
        line = capsys.readouterr().err.splitlines()[1]
        assert line.endswith(f"AUC {said} {progress.auc:.6f}")
        assert line.startswith(f"loss {log_loss(labels[:upto], predictions[:upto]):.6f} over all examples")


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.booleans())
@settings(deadline=None)
def test_sums_are_those_of_numpy_and_auc_that_of_counted_pairs(seed: int, rows: int, extreme: bool) -> None:
    random = np.random.default_rng(seed)
    labels = (random.random(rows) < 0.3).astype(np.float32)
    predictions = random.choice([0.0, 1e-30, 0.25, 0.5, 1.0], rows) if extreme else random.random(rows)
    predictions = predictions.astype(np.float32)
    loss, predicted = _native.validation_sums(labels, predictions, CLIP)
    p = np.clip(predictions.astype(np.float64), CLIP, 1 - CLIP)
    assert loss == pytest.approx(-np.log(np.where(labels > 0.5, p, 1 - p)).sum(), rel=1e-12)
    assert predicted == pytest.approx(p.sum(), rel=1e-12)
    clicks, others = predictions[labels > 0.5][:, None], predictions[labels <= 0.5]
    pairs = clicks.size * others.size
    met = auc(labels, predictions)
    if pairs:
        assert met == ((clicks > others).sum() + 0.5 * (clicks == others).sum()) / pairs
    else:
        assert math.isnan(met)


def test_labels_and_predictions_of_other_lengths_are_refused() -> None:
    three, four = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="expected one label for each prediction"):
        _native.auc(three, four)
    with pytest.raises(ValueError, match="expected one label for each prediction"):
        _native.validation_sums(three, four, CLIP)
