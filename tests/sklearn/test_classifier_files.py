"""A fitted ``cb.Classifier`` in files, pickles and copies; its feature importances; scikit-learn's own checks."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from torch import nn

import ctrbox as cb
from ctrbox.sklearn.classifier_folder import unpacked
from ctrbox.sklearn.frames import InputError
from tests.sklearn.test_classifier import QUICK, world


def own_model(schema: Any) -> nn.Module:
    return cb.models.FM(schema, 2)


@pytest.fixture(scope="module")
def fitted() -> cb.Classifier:
    X, y = world(800)
    clf = cb.Classifier("FM", dim=4, epochs=4, table_lr=0.2, threads=1)
    return clf.fit(X, y, sample_weight=np.linspace(0.5, 1.5, 800))


def pickled(clf: cb.Classifier) -> cb.Classifier:
    made: cb.Classifier = pickle.loads(pickle.dumps(clf))  # noqa: S301
    return made


def same(a: cb.Classifier, b: cb.Classifier) -> None:
    """Two classifiers that cannot be told apart by what they say."""
    X, _ = world(300, seed=5)
    assert np.array_equal(a.predict_proba(X), b.predict_proba(X))
    assert a.classes_.dtype == b.classes_.dtype
    assert a.classes_.tolist() == b.classes_.tolist()
    assert a.columns_ == b.columns_
    assert a.feature_names_in_.tolist() == b.feature_names_in_.tolist()
    assert a.n_features_in_ == b.n_features_in_
    assert np.array_equal(a.feature_importances_, b.feature_importances_)
    assert a.run_.metrics["auc"] == b.run_.metrics["auc"]


def test_a_saved_classifier_comes_back_and_can_be_saved_again(fitted: cb.Classifier, tmp_path: Path) -> None:
    assert fitted.save(tmp_path / "one") == tmp_path / "one"
    again = cb.Classifier.load(tmp_path / "one")
    same(again, fitted)
    assert again.get_params() == fitted.get_params()
    again.save(tmp_path / "two")
    same(cb.Classifier.load(tmp_path / "two"), fitted)
    X, y = world(200)
    assert again.fit(X, y).score(X, y) > 0.5


@pytest.mark.parametrize("classes", [[0, 1], [False, True], [-1.5, 2.5], ["no", "yes"]])
def test_classes_of_every_type_come_back(classes: list[Any], tmp_path: Path) -> None:
    X, y = world(100)
    labels = np.array(classes)[(y == "yes").astype(int)]
    clf = cb.Classifier(**QUICK).fit(X, labels)
    clf.save(tmp_path / "saved")
    for again in (cb.Classifier.load(tmp_path / "saved"), pickled(clf)):
        assert again.predict(X).dtype == clf.predict(X).dtype
        assert again.predict(X).tolist() == clf.predict(X).tolist()


def test_pickles_and_copies_are_as_good_as_the_original(fitted: cb.Classifier) -> None:
    assert b"torch" not in pickle.dumps(fitted)  # the weights travel as checked files, not as Python objects
    same(pickled(fitted), fitted)
    same(copy.deepcopy(fitted), fitted)
    same(pickled(pickled(fitted)), fitted)
    unfitted = pickled(cb.Classifier(dim=3))
    assert unfitted.get_params() == cb.Classifier(dim=3).get_params()
    assert not hasattr(unfitted, "run_")


def test_a_pickle_holds_no_rows_of_the_frame() -> None:
    secret = [f"secret-{k}" for k in range(60)]
    clf = cb.Classifier(**QUICK).fit(pa.table({"name": secret}), [0, 1] * 30)
    assert b"secret-" not in pickle.dumps(clf)


@pytest.mark.slow
def test_joblib_writes_what_another_process_reads(fitted: cb.Classifier, tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    X, _ = world(50, seed=9)
    joblib.dump(fitted, tmp_path / "clf.joblib")
    code = f"""
        import joblib, numpy as np, pyarrow.feather as feather
        clf = joblib.load({str(tmp_path / "clf.joblib")!r})
        np.save({str(tmp_path / "p.npy")!r}, clf.predict_proba(feather.read_table({str(tmp_path / "x.arrow")!r})))
    """
    feather.write_feather(X, str(tmp_path / "x.arrow"))
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
    assert np.array_equal(np.load(tmp_path / "p.npy"), fitted.predict_proba(X))


def test_a_model_of_ones_own_is_given_again_when_it_is_loaded(tmp_path: Path) -> None:
    X, y = world(100)
    clf = cb.Classifier(own_model, epochs=1, threads=1).fit(X, y)
    clf.save(tmp_path / "saved")
    with pytest.raises(cb.errors.PlanError, match=r"give it: Classifier.load\(…, model=own_model\)"):
        cb.Classifier.load(tmp_path / "saved")
    for again in (cb.Classifier.load(tmp_path / "saved", model=own_model), pickled(clf)):
        assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_what_cannot_be_saved_or_loaded_is_told(fitted: cb.Classifier, tmp_path: Path) -> None:
    with pytest.raises(cb.errors.PlanError, match="not fitted yet"):
        cb.Classifier().save(tmp_path / "unfitted")
    assert not (tmp_path / "unfitted").exists()
    with pytest.raises(cb.errors.SourceError, match="there is no folder"):
        cb.Classifier.load(tmp_path / "unfitted")
    fitted.save(tmp_path / "there")
    with pytest.raises(cb.errors.CtrboxError, match="exists and is not empty"):
        fitted.save(tmp_path / "there")
    with pytest.raises(cb.errors.PlanError, match="leave model= out"):
        cb.Classifier.load(tmp_path / "there", model=own_model)
    strange = copy.deepcopy(fitted).set_params(options={"a": object()})
    with pytest.raises(cb.errors.PlanError, match=r"options= is .* cannot be written to a file"):
        strange.save(tmp_path / "strange")
    with pytest.raises(cb.errors.CtrboxError, match="expected a path within its folder"):
        unpacked({"../outside": b""})


def test_damage_in_any_file_is_noticed(fitted: cb.Classifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "saved")
    files = [p for p in (tmp_path / "saved").rglob("*") if p.is_file()]
    assert len(files) >= 6
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        with pytest.raises(cb.errors.CtrboxError):
            cb.Classifier.load(tmp_path / "saved")
        path.write_bytes(whole)
    cb.Classifier.load(tmp_path / "saved")


def test_importances_name_the_columns_that_decide(fitted: cb.Classifier) -> None:
    user, ad, price = fitted.feature_importances_
    assert min(user, ad) > 0.2
    assert abs(price) < 0.05
    assert np.array_equal(fitted.feature_importances_, fitted.feature_importances_)
    X, y = world(800)
    twin = cb.Classifier("FM", dim=4, epochs=4, table_lr=0.2, threads=1)
    twin.fit(X, y, sample_weight=np.linspace(0.5, 1.5, 800))
    assert np.array_equal(twin.feature_importances_, fitted.feature_importances_)
    twin.feature_importances_[:] = 7
    assert np.array_equal(twin.feature_importances_, fitted.feature_importances_)


def test_importances_are_there_without_held_out_rows_and_for_columns_of_many_features() -> None:
    rng = np.random.default_rng(0)
    n = 400
    useful = rng.integers(0, 60, n)
    X = pa.table({"x1": useful, "x10": rng.integers(0, 60, n), "label": rng.random(n)})
    clf = cb.Classifier(**{**QUICK, "epochs": 5}, valid=0, table_lr=0.2).fit(X, useful % 2)
    assert clf.columns_["x1"] == "both"  # keys and a number, which change places together
    assert clf.feature_importances_.shape == (3,)
    assert clf.feature_importances_.argmax() == 0
    with pytest.raises(AttributeError, match="not fitted yet"):
        _ = cb.Classifier().feature_importances_
    assert not hasattr(cb.Classifier(), "feature_importances_")


def test_a_classifier_that_was_not_fitted_raises_scikit_learns_own_error() -> None:
    exceptions = pytest.importorskip("sklearn.exceptions")
    for error in (exceptions.NotFittedError, cb.errors.PlanError, ValueError, AttributeError):
        with pytest.raises(error, match="not fitted yet"):
            cb.Classifier().predict([[1]])


def test_times_that_are_numbers_in_another_frame_are_refused() -> None:
    X = pa.table({"when": pa.array([-1, 3_600_000_000_000] * 20).cast(pa.timestamp("ns"))})
    clf = cb.Classifier(**QUICK).fit(X, [0, 1] * 20)
    floored = pa.table({"when": pa.array([-1, 3_600_000_000] * 20).cast(pa.timestamp("us"))})
    assert np.array_equal(clf.predict_proba(X), clf.predict_proba(floored))
    with pytest.raises(InputError, match="column 'when' was time in fit"):
        clf.predict(pa.table({"when": [0, 1]}))
    with pytest.raises(InputError, match="column 'when' was time in fit"):
        clf.predict(pa.table({"when": ["1970-01-01"]}))


@pytest.mark.slow
def test_nothing_of_scikit_learn_is_imported() -> None:
    code = "import sys, ctrbox as cb; cb.Classifier(); print([m for m in sys.modules if m.startswith('sklearn')])"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert json.loads(found.stdout.replace("'", '"')) == []


# ---- scikit-learn's checks of an estimator

NOT_OURS = {
    "check_sample_weight_equivalence_on_dense_data": "a weight scales a row's gradient in its batch; two equal rows also change "
    "how rows fall into batches and which are held out, so that weights and repeated rows give models that differ a little",
}


def expected_failures(estimator: Any) -> dict[str, str]:
    return NOT_OURS


try:
    from sklearn.utils.estimator_checks import parametrize_with_checks
except ImportError:  # scikit-learn is a dependency of development alone
    parametrize_with_checks = None

if parametrize_with_checks is not None:

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    @parametrize_with_checks(
        [cb.Classifier("LR", dim=1, epochs=3, threads=1)], expected_failed_checks=expected_failures
    )
    def test_scikit_learns_checks_pass(estimator: Any, check: Any) -> None:
        check(estimator)


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_a_calibrated_classifier_comes_back_with_its_map(tmp_path: Path, kind: str) -> None:
    X, y = world(1500)
    clf = cb.Classifier("FM", dim=4, epochs=4, table_lr=0.2, calibrate=kind).fit(X, y)
    assert clf.run_.summary["calibrator"]["rows"] == 135  # a tenth of the nine tenths that are not held out
    p = clf.predict_proba(X)
    clf.save(tmp_path / "saved")
    assert cb.Classifier.load(tmp_path / "saved").predict_proba(X).tobytes() == p.tobytes()
    assert pickled(clf).predict_proba(X).tobytes() == p.tobytes()
