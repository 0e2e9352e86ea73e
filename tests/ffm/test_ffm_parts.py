"""Deep FFM by direct calls: threads, rates, names of fields, and what it can learn from."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrbox as cb
from ctrbox import _native
from ctrbox.errors import DataError, PlanError
from ctrbox.ffm.engine import LR, DeepFFM, _floats, _rates, _threads, field_names


@pytest.mark.parametrize(
    ("given", "most", "cores", "used", "warned"),
    [
        (1, 16, 4, 1, ""),
        (None, 16, 4, 4, ""),
        (None, 2, 4, 2, ""),
        (4, 16, 4, 4, ""),
        (5, 16, 4, 5, "threads=5: this process may use 4 cores"),
        (3, 2, 4, 2, "threads=3: at most 2 can work at once here"),
        (5, 4, 4, 4, "threads=5: this process may use 4 cores"),
        (2, 16, 1, 2, "threads=2: this process may use 1 core"),
    ],
)
def test_threads_that_cannot_help_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, given: int | None, most: int, cores: int, used: int, warned: str
) -> None:
    monkeypatch.setattr(_native, "usable_cores", lambda: cores)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        assert _threads(given, most) == used
    assert [str(one.message)[: len(warned)] for one in met] == ([warned] if warned else [])


@pytest.mark.parametrize("threads", [0, 257, True, 1.5])
def test_a_number_of_threads_is_whole_and_from_1_to_256(threads: Any) -> None:
    with pytest.raises(PlanError, match="threads"):
        _threads(threads, 16)


def test_a_rate_is_a_number_or_all_three_numbers() -> None:
    def numbers(given: Any) -> tuple[float, float, float]:
        found = _rates("lr", given, LR)
        return found.rate, found.power_t, found.initial

    assert numbers(None) == (float(np.float32(0.05)), 0.5, 1.0)
    assert numbers(0.5) == numbers(np.float32(0.5)) == (0.5, 0.5, 1.0)
    assert numbers(cb.ffm.Rate(0.25, 0.0, 2.0)) == (0.25, 0.0, 2.0)
    for wrong in (True, "0.5", [0.5]):
        with pytest.raises(PlanError, match=r"lr= must be a number, a cb\.ffm\.Rate or None, got"):
            numbers(wrong)
    for name in ("rate", "power_t", "initial"):
        for value in (True, "1"):
            with pytest.raises(PlanError, match=f"{name} of a Rate must be a number"):
                cb.ffm.Rate(**{"rate": 1.0, name: value})  # type: ignore[arg-type]


def test_a_model_tells_what_it_is() -> None:
    assert repr(DeepFFM(["a", "b"], hidden=(), bits=8)) == "DeepFFM(2 fields, lr, ffm k=4, bits=8, learned=0)"
    assert (
        repr(DeepFFM(["a"], ffm=None, hidden=(3,), bits=8)) == "DeepFFM(1 fields, lr, hidden=(3,), bits=8, learned=0)"
    )
    assert repr(DeepFFM(["a", "b"], lr=None, k=2, hidden=(), bits=8)) == "DeepFFM(2 fields, ffm k=2, bits=8, learned=0)"
    assert (
        repr(DeepFFM(["a", "b"], bits=8)) == "DeepFFM(2 fields, lr, ffm k=4, hidden=(24, 24), bits=8, learned=0)"
    )  # the default is deep
    assert field_names(["a", "b"]) == ["a", "b"]
    assert DeepFFM(["a", "b", "c"], context=["c"], bits=8).context_fields == ["c"]
    assert DeepFFM(["a", "b", "c"], context=["c"], bits=8).fields == ["c", "a", "b"]
    assert _floats(None).tolist() == []
    assert _floats(np.array([1.5])).dtype == np.float32


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"k": 0}, "k"),
        ({"k": 65}, "k"),
        ({"bits": 3}, "bits"),
        ({"bits": 37}, "bits"),
        ({"seed": -1}, "seed"),
        ({"hidden": 5}, r"hidden= must be the numbers of neurons of the layers, such as \(24, 24\), got 5"),
        ({"hidden": "5"}, "hidden= must be the numbers of neurons of the layers"),
        ({"hidden": (0,)}, "a layer of hidden"),
        ({"hidden": (1025,)}, "a layer of hidden"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        DeepFFM(["a"], **{"bits": 8, **options})


def examples(text: bytes, fields: list[str]) -> _native.Examples:
    (found,) = cb.ffm.ExampleText(io.BytesIO(text), fields=fields)
    return found


def test_fields_in_another_order_mean_the_same_and_unknown_ones_are_named() -> None:
    model = DeepFFM(["a", "b"], bits=8)
    model.learn(examples(b"1 |a x |b y\n0 |a z |b y\n", ["a", "b"]))
    turned = examples(b"1 |a x |b y\n", ["b", "a"])
    same = model._renumbered(turned, ["b", "a"], "t")
    expected = model.predict(examples(b"1 |a x |b y\n", ["a", "b"]))
    assert model.predict(same).tobytes() == expected.tobytes()
    assert model._renumbered(turned, ["a"], "t") is turned
    with pytest.raises(DataError, match="t has field 'aa', which this model does not have; nearest: 'a'"):
        model._renumbered(turned, ["aa"], "t")


def test_what_cannot_be_learned_from_is_named() -> None:
    model = DeepFFM(["a"], bits=8)
    for source in (5, "text", b"text", {"a": 1}):
        with pytest.raises(PlanError, match=f"cannot learn from or predict {type(source).__name__}"):
            model.learn(source)
    with pytest.raises(PlanError, match="score cannot read a int; expected a Batch or Examples"):
        model.context(5)
    with pytest.raises(PlanError, match="score needs the result of this model's `context` method, got int"):
        model.score(5, 5)  # type: ignore[arg-type]
    assert model.predict([]).tolist() == []
    one = examples(b"1 |a x\n", ["a"])
    assert model.learn([one, [one]]).examples == 2
    assert model.learned == 2


def test_examples_are_learned_in_order_and_bad_lines_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.vw"
    path.write_text("1 |a x\noops\n0 |a y\n")
    model = DeepFFM(["a"], bits=8)
    lines: list[str] = []
    model.progress.window = 1
    model.learn(cb.ffm.ExampleText(path, fields=["a"]), show=lines.append)
    assert (model.learned, model.progress.examples, model.key_kinds) == (2, 2, {"a": "text"})
    assert len(lines) == 3  # a head, windows 1 and 2
    assert "1 of 3 lines left out: line 2: " in capsys.readouterr().err
    other = DeepFFM(["a"], bits=8)
    other.learn(examples(b"1 |a x\n0 |a y\n", ["a"]))
    assert other.key_kinds == {"a": ""}
    assert other._native.weights().tobytes() == model._native.weights().tobytes()


def test_examples_without_a_label_are_predicted_and_not_learned() -> None:
    model = DeepFFM(["a"], bits=8)
    some = examples(b"1 |a x\n|a y\n |a z\n", ["a"])
    with pytest.raises(DataError) as met:
        model.learn(some)
    assert str(met.value) == "2 of 3 examples have no label; give every example a label of 0 or 1"
    assert model.learned == 0
    assert len(model.predict(some)) == 3
