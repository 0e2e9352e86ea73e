"""Deep FFM on several threads: blocks have the bits of their twin, threads change none, and the quality is kept."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.ffm.engine import DeepFFM, Rate
from ctrbox.ffm.progressive_validation import auc
from tests.ffm.test_deep_ffm import BOARD, checkerboard, lines, models, parsed, weights
from tests.twins.deep_ffm import Twin

pytestmark = pytest.mark.filterwarnings("ignore:threads=")


@given(st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_weights_learned_in_blocks_equal_the_twins_bit_by_bit(data: st.DataObject) -> None:
    options = data.draw(models())
    fields = options["fields"]
    text = "".join(data.draw(lines(fields)) for _ in range(data.draw(st.integers(1, 4))))
    examples = parsed(text, fields)
    block, learned = data.draw(st.integers(2, 40)), data.draw(st.sampled_from([0, 2_000, 10_000]))
    model = DeepFFM(**options)
    twin = Twin(model._native)
    with np.errstate(all="ignore"):
        expected = twin.learn_blocks(examples, block, learned)
    if not np.isfinite(expected).all() or not np.isfinite(twin.dense).all():
        return
    met, broken = model._native.learn(examples, data.draw(st.integers(1, 4)), True, block, learned)
    assert broken == -1
    assert met.tobytes() == expected.tobytes()
    assert weights(model) == [twin.lr.tobytes(), twin.ffm.tobytes(), twin.dense.tobytes()]


def clicks(rows: int, seed: int) -> tuple[list[_native.Examples], np.ndarray]:
    """Ten fields by Zipf, some of whose pairs decide; values of a field between 8 and 4,000. In pieces."""
    random = np.random.default_rng(seed)
    world = np.random.default_rng(99)
    sizes = [8, 30, 100, 500, 4_000] * 2
    values = np.stack([np.minimum(random.zipf(1.3, rows), size) - 1 for size in sizes], axis=1)
    logit = np.full(rows, -1.0)
    for f, g in ((0, 1), (2, 8), (3, 7), (4, 5), (6, 9)):
        a, b = (world.normal(0, 1, (sizes[h], 3)) for h in (f, g))
        logit += 0.8 * (a[values[:, f]] * b[values[:, g]]).sum(axis=1)
    label = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    none, salts = np.zeros(0, np.float32), [_native.salt(bytes([f])) for f in range(10)]
    pieces = [
        _native.Examples.from_batch(
            [
                (values[at : at + 10_000, f].astype(np.int64) + 1, np.arange(len(values[at : at + 10_000]) + 1))
                for f in range(10)
            ],
            np.zeros((len(values[at : at + 10_000]), 0), np.float32),
            salts,
            label[at : at + 10_000],
            none,
        )
        for at in range(0, rows, 10_000)
    ]
    return pieces, label


NAMES = [f"f{n}" for n in range(10)]


@pytest.mark.parametrize("hidden", [(), (32, 32)])
def test_sixteen_threads_learn_as_well_as_one(hidden: tuple[int, ...]) -> None:
    train, _ = clicks(60_000, seed=1)
    test, label = clicks(20_000, seed=2)
    found = {}
    for threads in (1, 2, 16):
        model = DeepFFM(NAMES, hidden=hidden, bits=18)
        model.learn(train, threads=threads)
        found[threads] = auc(label, model.predict(test, threads=threads))
        assert model.progress.examples == model.learned == 60_000
    assert found[1] > 0.7
    assert found[2] == found[16]
    assert abs(found[16] - found[1]) < 0.005


def test_any_number_of_threads_has_the_same_bits_and_progress() -> None:
    train, _ = clicks(20_000, seed=3)
    found = []
    for threads in (1, 2, 5, 16, 40):
        model = DeepFFM(NAMES, hidden=(12,), bits=14, norm=True)
        progress = model.learn(train, threads=threads, block=512)
        found.append((weights(model), progress.loss, progress.auc, model.predict(train, threads=threads).tobytes()))
    assert all(one == found[0] for one in found[1:])
    alone = DeepFFM(NAMES, hidden=(12,), bits=14, norm=True)
    alone.learn(train)
    assert weights(alone) != found[0][0]


def test_a_saved_model_goes_on_in_blocks_with_the_same_bits(tmp_path: Any) -> None:
    first, second = clicks(20_000, seed=3)[0]
    model = DeepFFM(NAMES, hidden=(6,), bits=14)
    model.learn(first, threads=2)
    model.save(tmp_path / "m.ffm")
    again = DeepFFM.load(tmp_path / "m.ffm")
    model.learn(second, threads=2)
    again.learn(second, threads=3)
    assert weights(again) == weights(model)


def test_more_threads_than_examples_or_none_at_all() -> None:
    few = parsed(checkerboard(3), BOARD)
    one, many = DeepFFM(BOARD, bits=12), DeepFFM(BOARD, bits=12)
    one.learn(few, threads=1, block=512)
    many.learn(few, threads=16)
    assert weights(one) == weights(many)
    many.learn(parsed("", BOARD), threads=16)
    assert len(many.predict(parsed("", BOARD), threads=16)) == 0
    assert weights(one) == weights(many)


def test_threads_that_cannot_help_are_named() -> None:
    model, few = DeepFFM(BOARD, bits=10), parsed(checkerboard(3), BOARD)
    with pytest.warns(UserWarning, match=r"threads=200: .*more threads would not be faster"):
        model.learn(few, threads=200)
    with pytest.warns(UserWarning, match="threads=2: at most 1 can work"):
        model.learn(few, threads=2, block=1)
    with pytest.warns(UserWarning, match=r"threads=256: this process may use \d+ cores"):
        model.predict(few, threads=256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(few)
        model.learn(few, threads=None)
        model.predict(few, threads=None)


@pytest.mark.parametrize("threads", [0, -1, 257, True, "2", 1.0])
def test_a_number_of_threads_that_cannot_be_is_refused(threads: Any) -> None:
    model, few = DeepFFM(BOARD, bits=10), parsed(checkerboard(3), BOARD)
    for call in (model.learn, model.predict):
        with pytest.raises(cb.errors.PlanError, match="threads must be a whole number from 1 to 256"):
            call(few, threads=threads)


@pytest.mark.parametrize("block", [0, -1, 5_000, True, "512"])
def test_a_block_that_cannot_be_is_refused(block: Any) -> None:
    with pytest.raises(cb.errors.PlanError, match="block must be a whole number from 1 to 4,096"):
        DeepFFM(BOARD, bits=10).learn(parsed(checkerboard(3), BOARD), block=block)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_an_output_that_is_not_finite_stops_all_threads(threads: int) -> None:
    text = checkerboard(700) + "1 |user x:1e38 |ad y:1e38\n" + checkerboard(3_000)
    model = DeepFFM(BOARD, bits=12, ffm=Rate(0.2))
    with pytest.raises(cb.errors.TrainError, match="example 700 is not finite"):
        model.learn(parsed(text, BOARD), threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_predictions_of_many_parts_are_in_the_order_of_the_parts(threads: int) -> None:
    parts, _ = clicks(50_000, seed=4)
    model = DeepFFM(NAMES, hidden=(6,), bits=14)
    model.learn(parts[0])
    expected = np.concatenate([model.predict(part) for part in parts])
    assert model.predict(parts, threads=threads).tobytes() == expected.tobytes()
    assert model.predict(iter(parts), threads=threads).tobytes() == expected.tobytes()
    assert model.predict(parts[:1], threads=threads).tobytes() == expected[:10_000].tobytes()
    assert len(model.predict([], threads=threads)) == 0


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_an_output_that_is_not_finite_is_named_by_its_place_in_all_parts(threads: int) -> None:
    model = DeepFFM(BOARD, bits=12, ffm_init=1.0)
    good, bad = parsed(checkerboard(700), BOARD), parsed(checkerboard(30) + "1 |user x:1e38 |ad y:1e38\n", BOARD)
    with pytest.raises(cb.errors.DataError, match="example 1,430 is not finite"):
        model.predict([good, good, bad, good], threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_a_field_that_the_model_has_not_is_refused_before_it_is_read(threads: int) -> None:
    few, many = DeepFFM(BOARD[:1], bits=12), parsed(checkerboard(2_000), BOARD)
    with pytest.raises(ValueError, match="a field that the model does not have"):
        few.predict(many, threads=threads)
    with pytest.raises(ValueError, match="a field that the model does not have"):
        few.learn(many, threads=threads)
    assert few.learned == 0
