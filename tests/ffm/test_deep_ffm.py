"""Deep FFM against its twin in NumPy, over random networks and examples; its files, its threads, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.errors import DataError, TrainError
from ctrbox.ffm.engine import DeepFFM, Rate
from tests.twins.deep_ffm import Twin

FIELDS = ("a", "b", "c", "d", "e")


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    parts = draw(st.sampled_from(["lr", "ffm", "both"]))
    power = st.sampled_from([0.5, 0.5, 0.0, 0.4, 1.0])
    rate = st.builds(Rate, st.sampled_from([0.02, 0.3]), power, st.sampled_from([1e-3, 1.0]))
    return {
        "fields": FIELDS[: draw(st.integers(1, 5))],
        "k": draw(st.integers(1, 9)),
        "hidden": draw(st.lists(st.integers(1, 18), max_size=3)),
        "bits": draw(st.integers(8, 11)),
        "lr": None if parts == "ffm" else draw(rate),
        "ffm": None if parts == "lr" else draw(rate),
        "nn": draw(rate),
        "norm": draw(st.booleans()),
        "residual": draw(st.booleans()),
        "ffm_init": draw(st.sampled_from([0.0, 0.3, 2.0])),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }


@st.composite
def lines(draw: st.DrawFn, fields: tuple[str, ...]) -> str:
    """Text with missing fields, several features of a field, values, importances and the same feature twice."""
    value = st.sampled_from(["", "", "", ":1", ":0.5", ":-2", ":0", ":1e-3", ":30"])
    feature = st.tuples(st.sampled_from("uvwxyz"), value).map("".join)
    line = st.tuples(
        st.sampled_from(["1", "-1", "0"]),
        st.sampled_from(["", " 2", " 0.25", " 0"]),
        st.lists(st.tuples(st.sampled_from(fields), st.lists(feature, max_size=4)), max_size=7),
    )
    return "".join(
        f"{label}{weight} "
        + " ".join(f"|{name} {' '.join(words)}" for name, words in parts or [(fields[0], [])])
        + "\n"
        for label, weight, parts in draw(st.lists(line, min_size=1, max_size=12))
    )


def parsed(text: str, fields: tuple[str, ...]) -> _native.Examples:
    parser = _native.ExampleParser(False, list(fields), [])
    assert parser.feed(text.encode()) == 0, parser.first_bad
    return parser.take()


def weights(model: DeepFFM) -> list[bytes]:
    native = model._native
    return [native.lr().tobytes(), native.ffm().tobytes(), native.dense().tobytes()]


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_weights_equal_the_twins_bit_by_bit(data: st.DataObject) -> None:
    options = data.draw(models())
    fields = options["fields"]
    examples = parsed(data.draw(lines(fields)), fields)
    model = DeepFFM(**options)
    twin = Twin(model._native)
    with np.errstate(all="ignore"):
        expected = twin.learn(examples)
    if not np.isfinite(expected).all():
        return
    model.learn(examples)
    met = DeepFFM(**options)._native.learn(examples, 1, True)[0]
    assert met.tobytes() == expected.tobytes()
    assert weights(model) == [twin.lr.tobytes(), twin.ffm.tobytes(), twin.dense.tobytes()]


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_skipped_branches_instruction_sets_and_pieces_change_no_bit(data: st.DataObject) -> None:
    options = data.draw(models())
    fields = options["fields"]
    first, second = (parsed(data.draw(lines(fields)), fields) for _ in range(2))
    model = DeepFFM(**options)
    diverged = _diverges(lambda: (model.learn([first, second]), model.predict(first)))
    for simd in ("scalar", "neon", "avx2", "avx512"):
        for sparse in (True, False):
            other = DeepFFM(**options)
            if not other._native.use(simd):
                continue

            def learned(other: DeepFFM = other, sparse: bool = sparse) -> bytes:
                other.learn(first, sparse_updates=sparse)
                other.learn(second, sparse_updates=sparse)
                return other.predict(first).tobytes()

            if diverged:  # the bits of a NaN are the processor's own choice; that it is refused is not
                assert _diverges(learned)
                continue
            assert learned() == model.predict(first).tobytes()
            assert weights(other) == weights(model)


def _diverges(work: Callable[[], object]) -> bool:
    """Whether the model is refused because its output is no longer finite."""
    try:
        work()
    except (TrainError, DataError):
        return True
    return False


def checkerboard(rows: int, seed: int = 0) -> str:
    """Even users click even ads."""
    random = np.random.default_rng(seed)
    users, ads, other = (random.integers(0, 20, rows) for _ in range(3))
    return "".join(
        f"{1 if u % 2 == a % 2 else -1} |user u{u} |ad a{a} |x o{o}\n"
        for u, a, o in zip(users, ads, other, strict=True)
    )


BOARD = ("user", "ad", "x")


@pytest.mark.filterwarnings("ignore:threads=")
@pytest.mark.parametrize("hidden", [(), (8,)])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_learns_which_pairs_click(hidden: tuple[int, ...], threads: int) -> None:
    model = DeepFFM(BOARD, hidden=hidden, bits=16, ffm=Rate(0.2))
    model.learn(parsed(checkerboard(30_000), BOARD), threads=threads)
    test = parsed(checkerboard(2_000, seed=1), BOARD)
    right = (model.predict(test, threads=threads) > 0.5) == (test.labels > 0.5)
    assert right.mean() > 0.95
    assert model.progress.examples == model.learned == 30_000
    assert model.progress.windows[0].auc > 0.8
    assert model.progress.loss < model.progress.constant


def test_logistic_regression_alone_cannot() -> None:
    model = DeepFFM(BOARD, ffm=None, hidden=(), bits=16)
    assert model.learn(parsed(checkerboard(30_000), BOARD)).auc < 0.6


def test_a_saved_model_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    first, second = parsed(checkerboard(500), BOARD), parsed(checkerboard(500, seed=1), BOARD)
    model = DeepFFM(BOARD, hidden=(5, 3), bits=12, norm=True)
    model.learn(first)
    model.save(tmp_path / "m.ffm")
    again = DeepFFM.load(tmp_path / "m.ffm")
    assert weights(again) == weights(model)
    assert (again.fields, again.learned, repr(again)) == (model.fields, 500, repr(model))
    model.learn(second)
    again.learn(second)
    assert weights(again) == weights(model)
    again.save(tmp_path / "again.ffm")
    model.save(tmp_path / "m.ffm")
    assert (tmp_path / "again.ffm").read_bytes() == (tmp_path / "m.ffm").read_bytes()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ffm"
    DeepFFM(BOARD, hidden=(3,), bits=8).save(path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for cut in [*range(0, 200, 7), *random.integers(0, len(whole), 40).tolist()]:
        path.write_bytes(whole[:cut])
        with pytest.raises(cb.errors.SourceError, match=r"m\.ffm"):
            DeepFFM.load(path)
    for bit in [*range(0, 1600, 3), *random.integers(0, 8 * len(whole), 300).tolist()]:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(cb.errors.SourceError, match=r"m\.ffm"):
            DeepFFM.load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(cb.errors.SourceError, match="size"):
        DeepFFM.load(path)
    with pytest.raises(cb.errors.SourceError, match="No such file"):
        DeepFFM.load(tmp_path / "none.ffm")


def batch_of(rows: int, seed: int = 0, **other: Any) -> Batch:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 4, rows)
    tags = Ragged(random.integers(1, 9, lengths.sum()), np.r_[0, np.cumsum(lengths)])
    user = Ragged(random.integers(1, 50, rows), np.arange(rows + 1))
    columns = {
        "label": random.integers(0, 2, rows).astype(np.float32),
        "dense": random.normal(size=(rows, 2)).astype(np.float32),
        "weight": random.random(rows).astype(np.float32),
    } | other
    schema = Schema(
        sparse=(Field("user", "user", False), Field("tags", "tags", True)),
        dense=(("bid", 1), ("age", 1)),
        label=columns["label"] is not None,
        group=False,
        weight=True,
    )
    return Batch(schema, rows, sparse={"user": user, "tags": tags}, group=None, **columns)


def test_batches_are_learned_whatever_the_order_of_fields() -> None:
    batch = batch_of(300)
    model = DeepFFM(batch.schema, hidden=(4,), bits=12)
    assert model.fields == ["user", "tags", "bid", "age"]
    twin = Twin(model._native)
    examples = model._of_batch(batch)
    model.learn(batch)
    twin.learn(examples)
    assert weights(model) == [twin.lr.tobytes(), twin.ffm.tobytes(), twin.dense.tobytes()]
    np.testing.assert_array_equal(examples.weights, batch.weight)
    turned = DeepFFM(["age", "tags", "user"], bits=12)
    found = turned._of_batch(batch)
    assert found.features == examples.features - 300
    for e in range(300):
        part = found.fields[found.offsets[e] : found.offsets[e + 1]]
        assert (np.diff(part.astype(int)) >= 0).all()
    assert len(turned.predict([batch, batch_of(5, label=None)])) == 305


def test_what_breaks_a_promise_is_refused_and_named() -> None:
    model = DeepFFM(batch_of(1).schema, bits=10)
    label = np.array([0, 1, np.nan], np.float32)
    dense = np.array([[0, 1], [np.inf, 1], [0, 1]], np.float32)
    before = weights(model)
    for bad, match in [
        ({"label": label}, "row 2: its label is nan"),
        ({"label": np.array([0, 2, 1], np.float32)}, "row 1: its label is 2"),
        ({"dense": dense}, "row 1: dense column 'bid' is inf; expected a finite number"),
        ({"weight": np.array([1, -1, 1], np.float32)}, "row 1: its weight is -1"),
        ({"label": None}, "no label"),
    ]:
        with pytest.raises(cb.errors.DataError, match=match):
            model.learn(batch_of(3, **bad))
    assert weights(model) == before
    with pytest.raises(cb.errors.PlanError, match="'usr' is not in this batch; nearest: 'user'"):
        DeepFFM(["usr"], bits=10).learn(batch_of(3))
    with pytest.raises(cb.errors.PlanError, match="cannot learn from"):
        model.learn("train.vw")
    with pytest.raises(cb.errors.PlanError, match="threads must be"):
        model.learn(batch_of(3), threads=0)


def test_an_output_that_is_not_finite_stops() -> None:
    model = DeepFFM(("a", "b"), bits=8)
    with pytest.raises(cb.errors.TrainError, match="example 1 is not finite"):
        model.learn(parsed("1 |a x |b y\n1 |a x:1e38 |b y:1e38\n", ("a", "b")))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 0}, "k must be"),
        ({"k": -1}, "k must be"),
        ({"k": "4"}, "k must be"),
        ({"bits": 60}, "bits must be"),
        ({"bits": 5, "k": 17}, "cannot hold one row"),
        ({"lr": None, "ffm": None}, "cannot both be off"),
        ({"hidden": [0]}, "a layer of hidden must be"),
        ({"hidden": 16}, "numbers of neurons of the layers"),
        ({"hidden": [1] * 9}, "hidden must have at most 8 layers"),
        ({"ffm": -0.1}, "rate"),
        ({"ffm": float("nan")}, "rate"),
        ({"nn": Rate(0.1, power_t=2)}, "power_t"),
        ({"lr": Rate(0.1, initial=0)}, "accumulator"),
        ({"lr": "0.1"}, "lr= must be a number, a cb.ffm.Rate or None, got '0.1'"),
        ({"ffm": True}, "ffm= must be a number, a cb.ffm.Rate or None, got True"),
        ({"nn": [0.1]}, r"nn= must be a number, a cb.ffm.Rate or None, got \[0.1\]"),
        ({"nn": "fast"}, "nn= must be a number"),
        ({"ffm_init": float("nan")}, "ffm_init"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=match):
        DeepFFM(("a", "b"), **options)


def test_names_of_fields_are_checked_and_memory_is_bounded() -> None:
    for fields, match in [
        ((), "1 to 512"),
        (("a", "a"), "two fields have the name"),
        ("ab", "must be a list of names"),
        ((1,), "must be a list of names"),
    ]:
        with pytest.raises(cb.errors.PlanError, match=match):
            DeepFFM(fields)
    with pytest.raises(cb.errors.BudgetError, match="bits=36 needs"):
        DeepFFM(("a",), bits=36)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": "0.1"}, "rate of a Rate must be a number, got '0.1'"),
        ({"rate": None}, "rate of a Rate must be a number, got None"),
        ({"rate": 0.1, "power_t": "0.5"}, "power_t of a Rate must be a number, got '0.5'"),
        ({"rate": 0.1, "initial": True}, "initial of a Rate must be a number, got True"),
    ],
)
def test_a_rate_of_the_wrong_type_is_refused_where_it_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=message):
        Rate(**given)


def test_a_rate_may_be_any_number() -> None:
    assert repr(DeepFFM(["a"], bits=4, lr=np.float32(0.5), ffm=1, nn=Rate(np.float64(0.1)))).startswith(
        "DeepFFM(1 fields"
    )
