"""``cb.Classifier``: what columns become, what is refused, and that scikit-learn's tools take it for one of theirs."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox.sklearn.classifier import shuffled_together
from ctrbox.sklearn.frames import FEW, Frame, InputError, labels_of, stratified, weights_of

QUICK: dict[str, Any] = {"model": "FM", "dim": 2, "epochs": 2, "threads": 1}


def world(rows: int = 1500, seed: int = 0) -> tuple[pa.Table, np.ndarray]:
    """Even users click even ads."""
    rng = np.random.default_rng(seed)
    user, ad = rng.integers(0, 10, rows), rng.integers(0, 10, rows)
    table = pa.table({"user": user, "ad": [f"ad{k}" for k in ad], "price": rng.normal(size=rows)})
    return table, np.where(rng.random(rows) < np.where((user + ad) % 2 == 0, 0.9, 0.1), "yes", "no")


@pytest.fixture(scope="module")
def fitted() -> cb.Classifier:
    X, y = world()
    return cb.Classifier("FM", dim=4, epochs=4, table_lr=0.2).fit(X, y)


def test_it_learns_and_says_what_it_learned_from(fitted: cb.Classifier) -> None:
    X, y = world(600, seed=1)
    assert fitted.score(X, y) > 0.85
    assert fitted.run_.metrics["auc"] > 0.8
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.feature_names_in_.tolist() == ["user", "ad", "price"]
    assert fitted.n_features_in_ == 3
    assert fitted.columns_ == {"user": "keys", "ad": "keys", "price": "number"}
    p = fitted.predict_proba(X)
    assert p.shape == (600, 2)
    assert np.allclose(p.sum(1), 1)
    assert (fitted.predict(X) == np.where(p[:, 1] > 0.5, "yes", "no")).all()
    right = fitted.predict(X) == y
    assert fitted.score(X, y, sample_weight=right + 0.0) == 1.0


def test_a_row_is_predicted_alike_in_every_company(fitted: cb.Classifier) -> None:
    X, _ = world(300, seed=2)
    whole = fitted.predict_proba(X)
    order = np.random.default_rng(0).permutation(300)
    assert np.array_equal(fitted.predict_proba(X.take(order)), whole[order])
    assert np.array_equal(fitted.predict_proba(X.slice(7, 1)), whole[7:8])
    assert fitted.predict_proba(X.slice(0, 0)).shape == (0, 2)
    swapped = X.select(["price", "ad", "user"]).append_column("more", pa.array([0] * 300))
    assert np.array_equal(fitted.predict_proba(swapped), whole)


def test_one_seed_gives_one_model() -> None:
    X, y = world(400)
    found = [cb.Classifier(**QUICK, seed=s).fit(X, y).predict_proba(X) for s in (3, 3, 4)]
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.slow
def test_frames_of_every_kind_give_the_same_model() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, y = world(400)
    frame = pandas.DataFrame({n: X.column(n).to_pylist() for n in X.column_names})
    moved = frame.set_index(np.arange(400)[::-1] * 3)  # as after a shuffle: row labels must not become a feature
    category = frame.assign(ad=frame["ad"].astype("category"))
    wanted = cb.Classifier(**QUICK).fit(X, y).predict_proba(X)
    for other in (frame, moved, category, polars.from_arrow(X), {n: X.column(n) for n in X.column_names}):
        clf = cb.Classifier(**QUICK).fit(other, y)
        assert clf.n_features_in_ == 3
        assert np.array_equal(clf.predict_proba(other), wanted)
        assert np.array_equal(clf.predict_proba(X), wanted)
    for labels in (pandas.Series(y), polars.Series(y), pa.array(y.tolist()), y.tolist()):
        assert np.array_equal(cb.Classifier(**QUICK).fit(X, labels).predict_proba(X), wanted)
    with pytest.warns(UserWarning, match="column-vector y"):
        assert np.array_equal(cb.Classifier(**QUICK).fit(X, y[:, None]).predict_proba(X), wanted)


def test_arrays_have_columns_by_place() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = X[:, 1] > 0
    clf = cb.Classifier(epochs=8, dim=4, table_lr=0.2, threads=1).fit(X, y)
    assert clf.score(X, y) > 0.9
    assert clf.classes_.tolist() == [False, True]
    assert not hasattr(clf, "feature_names_in_")
    with pytest.raises(ValueError, match="X has 2 features, but Classifier is expecting 3"):
        clf.predict(X[:, :2])
    named = cb.Classifier(**QUICK).fit(pa.table({"a": X[:, 0]}), y)
    assert named.fit(X, y) is named
    assert not hasattr(named, "feature_names_in_")


@pytest.mark.parametrize("model", ["LR", "DeepFM", "DCNv2", lambda schema: cb.models.LR(schema)])
def test_any_model_can_be_chosen(model: Any) -> None:
    X, y = world(200)
    clf = cb.Classifier(model, dim=2, epochs=1, threads=1).fit(X, y)
    assert np.isfinite(clf.predict_proba(X)).all()
    if model == "DeepFM":
        clf.set_params(options={"hidden": (3,)}).fit(X, y)
        assert clf.run_.model.config["hidden"] == [3] or tuple(clf.run_.model.config["hidden"]) == (3,)  # type: ignore[index]


# ---- what a column becomes


def kinds(**columns: Any) -> dict[str, str]:
    return Frame.of(pa.table(columns)).kinds


def test_columns_are_read_by_their_type_and_how_many_values_they_have() -> None:
    n = 4 * FEW
    found = kinds(
        text=["a", None] * (n // 2),
        flag=[True, None] * (n // 2),
        few=[k % FEW for k in range(n)],
        many=[k % (FEW + 1) for k in range(n)],
        ids=list(range(n)),
        number=[0.5, math.nan] * (n // 2),
        none=pa.nulls(n),
        day=[dt.date(2024, 1, 1)] * n,
        ts=[dt.datetime(2024, 1, 1, 5)] * n,
        tags=[["a"], None] * (n // 2),
        numbers=[[1, None], []] * (n // 2),
        category=pa.array([1.5, 2.5] * (n // 2)).dictionary_encode(),
    )
    assert found == {
        "text": "keys", "flag": "keys", "few": "keys", "many": "both", "ids": "number", "number": "number",
        "none": "keys", "day": "time", "ts": "time", "tags": "list", "numbers": "list", "category": "keys",
    }  # fmt: skip


def test_a_user_may_say_what_a_column_is() -> None:
    table = pa.table({"a": [1.0, 2.0], "b": ["1", "2"], "c": list(range(2))})
    assert Frame.of(table, ["a"], ["b", 2]).kinds == {"a": "keys", "b": "number", "c": "number"}
    with pytest.raises(InputError, match="contains 'd', but X has no column of this name"):
        Frame.of(table, ["d"])
    with pytest.raises(InputError, match="'a' is both in"):
        Frame.of(table, "a", "a")
    with pytest.raises(InputError, match=r"'b' .* cannot be read as numbers"):
        Frame.of(pa.table({"b": ["x"]}), numeric=["b"])


def test_hard_columns_are_learned_from() -> None:
    """Everything at once: constants, nothing but missing, names of ours, lists, times, huge numbers, one odd bool."""
    n = 120
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "label": rng.integers(0, 3, n),
            "weight": ["w"] * n,
            "constant": [3.5] * n,
            "empty": pa.array([None] * n, pa.float64()),
            "nothing": pa.nulls(n),
            "huge": rng.choice([1e38, -1e38, 0.0], n),
            "holes": pa.array([None if k % 3 else float(k) for k in range(n)]),
            "tags": pa.array([None if k % 5 == 0 else [f"t{k % 3}", None] for k in range(n)]),
            "when": pa.array([None if k % 7 == 0 else dt.datetime(2024, 1, 1 + k % 20, k % 24) for k in range(n)]),
            "unsigned": pa.array([2**64 - 1 - k % 4 for k in range(n)], pa.uint64()),
            "flag": pa.array([None] + [k % 2 == 0 for k in range(n - 1)]),
            "many": [k % 57 for k in range(n)],
        }
    )
    y = rng.integers(0, 2, n)
    clf = cb.Classifier(**QUICK).fit(table, y, sample_weight=rng.random(n))
    assert clf.run_.plan.schema.weight
    whole = clf.predict_proba(table)
    assert np.isfinite(whole).all()
    nulls = pa.table({f.name: pa.nulls(3, f.type) for f in table.schema})
    assert np.isfinite(clf.predict_proba(nulls)).all()
    strange = pa.table({**{n: table.column(n) for n in table.column_names}, "weight": [5] * n})
    with pytest.raises(InputError, match="column 'weight' was text in fit"):
        clf.predict_proba(strange)


def test_a_missing_bool_or_time_is_a_value_of_its_own_also_where_fit_met_none() -> None:
    times = [dt.datetime(2024, 1, 1 + k % 20, k % 24) for k in range(120)]
    for values, stand_in in (([k % 2 == 0 for k in range(120)], False), (times, dt.datetime(1970, 1, 1))):
        X = pa.table({"x": values})
        clf = cb.Classifier(**QUICK).fit(X, [k % 2 for k in range(120)])
        p = clf.predict_proba(pa.table({"x": pa.array([None, stand_in], X.schema.field("x").type)}))
        assert p[0, 1] != p[1, 1], stand_in


def test_unusual_names_are_only_names() -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"": rng.integers(0, 3, 60), "a#bucket": rng.random(60), "ü.ü": ["x"] * 60, "#label": [1] * 60})
    clf = cb.Classifier(**QUICK).fit(table, rng.integers(0, 2, 60))
    assert clf.feature_names_in_.tolist() == ["", "a#bucket", "ü.ü", "#label"]
    assert clf.predict(table).shape == (60,)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62), st.integers(0, 3)), min_size=1, max_size=40),
    st.lists(st.one_of(st.none(), st.text(max_size=3)), min_size=1, max_size=40),
    st.lists(st.one_of(st.none(), st.floats(width=32, allow_infinity=False)), min_size=1, max_size=40),
)
def test_a_frame_has_no_gaps_and_reads_its_own_rows_alike(ints: list, texts: list, floats: list) -> None:
    n = min(map(len, (ints, texts, floats)))
    table = pa.table(
        {
            "i": pa.array(ints[:n], pa.int64()),
            "s": pa.array(texts[:n], pa.string()),
            "f": pa.array(floats[:n], pa.float64()),
        }
    )
    frame = Frame.of(table)
    assert frame.table.num_rows == n
    assert all(c.null_count == 0 for c in frame.table.columns)
    assert frame.read(table).equals(frame.table)
    assert frame.without_rows().read(table.slice(n // 2)).equals(frame.table.slice(n // 2))
    # The slow twin of the filled number: the mean of those that are there.
    if frame.kinds["f"] == "number":
        known = [f for f in floats[:n] if f is not None and f == f]
        expected = [
            f if f is not None and f == f else (math.fsum(known) / len(known) if known else 0) for f in floats[:n]
        ]
        assert frame.table.column("f").to_pylist() == pytest.approx(expected, rel=1e-9, abs=1e-30)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=80), st.floats(0, 0.9), st.integers(0, 9))
def test_rows_held_out_are_of_both_classes_and_never_all_of_one(clicked: list[int], share: float, seed: int) -> None:
    order, held = stratified(clicked, share, seed)
    assert sorted(order) == list(range(len(clicked)))
    train = [clicked[k] for k in order[: len(order) - held]]
    assert set(train) == set(clicked)
    for value in (0, 1):
        out = sum(clicked[k] == value for k in order[len(order) - held :])
        total = clicked.count(value)
        assert out == max(0, min(round(total * share), total - 1))


def test_rows_in_the_order_of_time_are_held_out_from_the_end() -> None:
    X, y = world(200)
    clf = cb.Classifier(**QUICK, shuffle=False, valid=0.25, batch_size=64).fit(X, y)
    assert clf.run_.summary["rows"]["valid"] == 50
    assert clf.run_.metrics["clicks"] == (y[-50:] == "yes").sum()
    everything = cb.Classifier(**QUICK, valid=0).fit(X, y)
    assert everything.run_.summary["rows"] == {"train": 400, "valid": 0}


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_largest_share_is_held_out_and_one_row_of_each_class_stays(shuffle: bool) -> None:
    clf = cb.Classifier(**{**QUICK, "epochs": 1}, shuffle=shuffle, valid=0.9)
    clf.fit([["a"], ["b"]] * 10, [0, 1] * 10)
    assert clf.run_.summary["rows"] == {"train": 2, "valid": 18}


@pytest.mark.parametrize(
    ("rows", "batch", "together"),
    [
        (1, 32, 32),
        (32, 32, 32),
        (33, 32, 64),
        (1 << 20, 1 << 10, 1 << 20),
        ((1 << 20) + 1, 1 << 10, 1 << 20),
        (3_000_000, 3_000, 349 * 3_000),
        (3_000_000, (1 << 20) - 1, (1 << 20) - 1),
        (3_000_000, 1 << 20, 1 << 20),
        (3_000_000, 2_000_000, 2_000_000),
    ],
)
def test_rows_are_shuffled_in_whole_batches_of_about_a_million_rows(rows: int, batch: int, together: int) -> None:
    assert shuffled_together(rows, batch) == together


def test_labels_in_order_of_class_are_learned_as_well_as_shuffled_ones() -> None:
    X, y = world(600)
    order = np.argsort(y, kind="stable")
    clf = cb.Classifier("FM", dim=4, epochs=4, table_lr=0.2, threads=1).fit(X.take(order), y[order])
    assert clf.score(X, y) > 0.8


def test_weights_decide() -> None:
    """Of two labels for every row, the one of more weight wins."""
    X, _ = world(300)
    twice = pa.concat_tables([X, X])
    y = np.repeat(["no", "yes"], 300)
    for winner in (0, 1):
        weight = np.repeat([1.0, 0.05] if winner == 0 else [0.05, 1.0], 300)
        clf = cb.Classifier(**{**QUICK, "epochs": 6}, table_lr=0.2).fit(twice, y, sample_weight=weight)
        assert (clf.predict(X) == ["no", "yes"][winner]).mean() > 0.95


# ---- bad input


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ([1, 2, 3], "Expected 2D array, got 1D array"),
        (np.zeros((2, 2, 2)), "got 3D array"),
        (np.zeros((2, 0)), r"0 feature\(s\)"),
        (np.zeros((0, 2)), "no rows"),
        (pa.table({}), r"0 feature\(s\)"),
        (np.array([[1j]]), "Complex data not supported"),
        (np.array([[1.0], [math.inf]]), "contains infinity.*column 'x0' is inf in row 1"),
        (np.array([["a"], [3]], dtype=object), "mixed types"),
        (pa.table({"a": [[1.5]]}), "column 'a' has type list"),
        (pa.table({"a": [{"b": 1}]}), "column 'a' has type struct"),
        (pa.table({"a": [b"b"]}), "column 'a' has type binary"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns 'a'"),
        ({"a": [1], "b": [1, 2]}, "cannot be read as columns"),
    ],
)
def test_what_is_no_frame_is_refused(frame: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Frame.of(frame)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, 1, 2], "y has 3 classes .*Only binary"),
        ([1, 1, 1], r"y has one class \(1\), expected two"),
        ([0.1, 0.2, 0.35], "Unknown label type: y is continuous"),
        ([0, 1], "X has 3 rows and y has 2"),
        ([0.0, 1.0, math.nan], "y is nan in row 2"),
        (["a", None, "b"], "rows without a label"),
        (["a", 3, (1,)], "labels of different types|1d array|inhomogeneous"),
        (np.zeros((3, 2)), "1d array"),
        (None, "y is None"),
    ],
)
def test_what_is_no_label_is_refused(y: Any, words: str) -> None:
    if isinstance(y, list) and y[1:2] == [3]:
        array = np.empty(3, object)
        array[:] = y
        y = array
    with pytest.raises(InputError, match=words):
        labels_of(y, 3)


@pytest.mark.parametrize("weight", [[1.0], [1, 2, -1], [1, 2, math.nan], [0, 0, 0], ["a", "b", "c"], [[1, 2, 3]]])
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="sample_weight"):
        weights_of(weight, 3)


def test_what_is_asked_wrongly_is_refused(fitted: cb.Classifier) -> None:
    X, y = world(40)
    with pytest.raises(cb.errors.CtrboxError, match="not fitted yet"):
        cb.Classifier().predict(X)
    with pytest.raises(AttributeError, match="not fitted yet"):
        cb.Classifier().predict_proba(X)
    with pytest.raises(
        InputError, match=r"X lacks column 'price', which was in the X given to fit\(\); nearest: 'prize'"
    ):
        fitted.predict(X.rename_columns(["user", "ad", "prize"]))
    with pytest.raises(InputError, match=r"column 'user' was number in fit \(int64\) and is string now"):
        fitted.predict(pa.table({"user": ["5"], "ad": ["x"], "price": [1.0]}))
    with pytest.raises(InputError, match=r"column 'ad' was text in fit \(string\) and is int64 now"):
        fitted.predict(pa.table({"user": [5], "ad": [5], "price": [1.0]}))
    with pytest.raises(InputError, match=r"column 'price' was number in fit \(double\) and is bool now"):
        fitted.predict(pa.table({"user": [5], "ad": ["x"], "price": [True]}))
    with pytest.raises(InputError, match="y has 39"):
        fitted.score(X, y[1:])
    with pytest.raises(InputError, match="no parameter 'epoch'; nearest: 'epochs'"):
        cb.Classifier().set_params(epoch=3)
    with pytest.raises(cb.errors.PlanError, match="there is no model 'DepFM'; nearest: 'DeepFM'"):
        cb.Classifier("DepFM").fit(X, y)
    with pytest.raises(cb.errors.PlanError, match=r"a name of cb\.models or a function"):
        cb.Classifier(3).fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(cb.errors.PlanError, match="valid must be a share"):
        cb.Classifier(valid=1).fit(X, y)
    with pytest.raises(cb.errors.PlanError, match="epochs must be"):
        cb.Classifier(epochs=0).fit(X, y)


def test_two_rows_are_enough() -> None:
    clf = cb.Classifier(**QUICK).fit([["a", 1.0], ["b", 2.0]], [0, 1])
    assert clf.predict_proba([["a", 1.0]]).shape == (1, 2)


# ---- scikit-learn


def test_parameters_are_kept_as_given() -> None:
    options = {"hidden": (8,)}
    clf = cb.Classifier("DCNv2", options=options, categorical=["a"])
    assert clf.get_params()["options"] is options
    assert repr(clf) == "Classifier(model='DCNv2', options={'hidden': (8,)}, categorical=['a'])"
    assert clf.set_params(dim=3, epochs=1).dim == 3
    assert repr(cb.Classifier()) == "Classifier()"


@pytest.mark.slow
def test_scikit_learn_takes_it_for_a_classifier() -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.validation import check_is_fitted

    pandas = pytest.importorskip("pandas")
    X, y = world(300)
    frame = pandas.DataFrame({n: X.column(n).to_pylist() for n in X.column_names})
    clf = cb.Classifier(**QUICK)
    assert is_classifier(clf)
    assert clone(clf).get_params() == clf.get_params()
    assert cross_val_score(clf, frame, y, cv=2, scoring="roc_auc").shape == (2,)
    search = GridSearchCV(clf, {"dim": [1, 2]}, cv=2).fit(frame, y)
    assert search.best_params_["dim"] in (1, 2)
    assert search.predict_proba(frame).shape == (300, 2)
    check_is_fitted(search.best_estimator_)
    numbers = np.random.default_rng(0).normal(size=(200, 2))
    pipe = make_pipeline(StandardScaler(), cb.Classifier(**QUICK)).fit(numbers, numbers[:, 0] > 0)
    assert pipe.predict(numbers).shape == (200,)
