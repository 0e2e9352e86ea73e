"""Single lines of text and single settings at the ends of their ranges: what is taken, and the sentence of every refusal."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ctrbox import _native
from tests.twins import example_text as twin
from tests.twins.deep_ffm import rows_of

native: Any = _native


def why(line: str, libffm: bool = False, fields: tuple[str, ...] = ()) -> str | None:
    """Return why a line is left out; None where it is an example."""
    parser = native.ExampleParser(libffm, list(fields), [])
    bad = parser.feed(line.encode())
    assert (bad, parser.take().rows) == (len(parser.first_bad), 1 - bad)
    return parser.first_bad[0][1] if bad else None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1 |a x", None),
        ("|a x", None),
        ("1 2.5 |a x", None),
        ("1 0 |a x", None),
        ("1 2 tag|a x", None),
        ("1 2 'tag |a x", None),
        ("'tag |a x", None),
        ("1\t|a\tx\r", None),
        ("1 |a x |", None),
        ("1 | x", None),
        ("1 |a", None),
        ("1 2 x", "no | in it"),
        ("1 2 3 |a x", "a base '3' is not supported; expected label and importance"),
        ("1 2 3 tag|a x", "a base '3' is not supported; expected label and importance"),
        ("1 2 3 4 5 |a x", "more than a label, an importance, a base and a tag before the first |"),
        ("2 |a x", "label '2'; expected 1, 0 or -1"),
        ("one |a x", "label 'one' is no number"),
        ("1 -0.5 |a x", "importance '-0.5' is negative"),
        ("1 many |a x", "importance 'many' is no number"),
        ("1 |a:z x", "scale 'z' is no number"),
        ("1 |a :3", "feature ':3' has no name"),
        ("1 |a x:", "value '' is no number"),
        ("1 |a x:1:2", "value '1:2' is no number"),
        ("1 |a x:inf", "value 'inf' is not finite"),
        ("1 |a x:1e39", "value '1e39' is not finite"),
        ("1 |a:1e30 x:1e30", "value 'x:1e30' times its scale is not finite"),
        ("1 |a x:" + "9" * 39 + "z", f"value '{'9' * 39}z' is no number"),
        ("1 |a x:" + "9" * 40 + "z", f"value '{'9' * 40}…' is no number"),
        ("1 |a x:\x01~\x7f", "value '?~?' is no number"),
        ("1 |b x", "namespace 'b' is none of the fields"),
    ],
)
def test_a_line_of_vowpal_wabbit(line: str, expected: str | None) -> None:
    fields = ("a",) if "|b" in line else ()
    assert why(line, fields=fields) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1", None),
        ("-1 a:x:1", None),
        ("0 a:x:1 b:y:0.5", None),
        ("1 ax", "feature 'ax'; expected field:name:value"),
        ("1 a:x", "feature 'a:x'; expected field:name:value"),
        ("1 :x:1", "feature ':x:1'; expected field:name:value"),
        ("1 a::1", "feature 'a::1'; expected field:name:value"),
        ("1 a:x:", "value '' is no number"),
        ("1 a:x:1:1", "value '1:1' is no number"),
        ("3 a:x:1", "label '3'; expected 1, 0 or -1"),
    ],
)
def test_a_line_of_libffm(line: str, expected: str | None) -> None:
    assert why(line, True) == expected


@pytest.mark.parametrize(
    ("line", "label", "weight", "features"),
    [
        ("1 |a x", 1.0, 1.0, [("a", "x", 1.0)]),
        ("-1 2.5 |a x:+3 y", 0.0, 2.5, [("a", "x", 3.0), ("a", "y", 1.0)]),
        ("0 |a:2 x:0.5 y", 0.0, 1.0, [("a", "x", 1.0), ("a", "y", 2.0)]),
        ("+1 |a x:1e-60 y", 1.0, 1.0, [("a", "y", 1.0)]),  # too small is 0, and 0 is left out
        ("|a x", math.nan, 1.0, [("a", "x", 1.0)]),
        ("1tag|a x", None, None, None),  # what touches the bar is a label where nothing stands before it
        ("1 t|a x", 1.0, 1.0, [("a", "x", 1.0)]),
    ],
)
def test_what_a_line_says(line: str, label: float | None, weight: float | None, features: Any) -> None:
    parser = native.ExampleParser(False, [], [])
    parser.feed(line.encode())
    found = rows_of(parser.take())
    if features is None:
        assert not found
        return
    ((met, met_label, met_weight),) = found
    assert (met_label, met_weight) == (pytest.approx(label, nan_ok=True), weight)
    fields = list(parser.fields)
    assert [(n, k, float(v)) for n, k, v in met] == [(fields.index(f), twin.key_of(f, n), v) for f, n, v in features]


@pytest.mark.parametrize(
    ("line", "label", "features"),
    [
        ("1 a:x:1 b:yy:0.5", 1.0, [("a", "x", 1.0), ("b", "yy", 0.5)]),
        ("-1 long:name:2 l:n:+3", 0.0, [("long", "name", 2.0), ("l", "n", 3.0)]),
        ("0\ta:xyz:1e-60 a:q:4\r", 0.0, [("a", "q", 4.0)]),
    ],
)
def test_what_a_line_of_libffm_says(line: str, label: float, features: Any) -> None:
    parser = native.ExampleParser(True, [], [])
    parser.feed(line.encode())
    ((met, met_label, met_weight),) = rows_of(parser.take())
    fields = list(parser.fields)
    assert (met_label, met_weight) == (label, 1.0)
    assert [(n, k, float(v)) for n, k, v in met] == [(fields.index(f), twin.key_of(f, n), v) for f, n, v in features]


def test_fields_and_features_have_their_most() -> None:
    names = [f"n{k}" for k in range(512)]
    parser = native.ExampleParser(False, [], [])
    assert parser.feed(("1 " + " ".join(f"|{name} x" for name in names) + "\n").encode()) == 0
    assert parser.feed(b"1 |n511 x |n0 y\n1 |more x\n1 |n5 x\n") == 1
    assert parser.first_bad == [(3, "namespace 'more' would be field 513")]
    assert list(parser.fields) == names
    native.ExampleParser(False, names, [])
    with pytest.raises(ValueError, match="too many fields"):
        native.ExampleParser(False, [*names, "more"], [])
    with pytest.raises(ValueError, match="is also in ignore="):
        native.ExampleParser(False, ["a"], ["a"])
    assert why(f"1 |{'a' * 1000} x") is None
    assert why(f"1 |{'a' * 1001} x") == f"namespace '{'a' * 40}…' is longer than 1,000 bytes"
    assert why("1 |a " + "x " * 65_535) is None
    assert why("1 |a " + "x " * 65_536) == "more than 65535 features"


def test_lines_are_counted_with_those_that_are_empty() -> None:
    parser = native.ExampleParser(False, [], [])
    assert parser.feed(b"1 |a x\n\n \t\r\nbad\n0 |a y") == 1
    assert parser.feed(b"worse\n" * 12) == 12
    assert [line for line, _ in parser.first_bad] == [4, *range(6, 15)]
    assert (parser.take().rows, parser.take().rows, parser.bad) == (2, 0, 13)


# ---- settings


def settings(**changed: Any) -> Any:
    made = native.FfmSettings()
    usual = {"fields": 4, "context": 0, "k": 4, "bits": 10, "lr": True, "ffm": True, "hidden": [8], "ffm_init": 0.1}
    rates = native.BlockRates(0.1, 0.5, 1.0)
    for name, value in {**usual, **dict.fromkeys(("lr_rates", "ffm_rates", "nn_rates"), rates), **changed}.items():
        setattr(made, name, value)
    return made


RATES = "a rate must be above 0 and at most 1000, power_t 0 to 1, the first accumulator 1e-10 to 1e10"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("fields", 0, "fields must be 1 to 512"),
        ("fields", 1, ""),
        ("fields", 513, "fields must be 1 to 512"),
        ("context", 4, ""),
        ("context", 5, "the context cannot have more fields than the model"),
        ("k", 0, "k must be 1 to 64"),
        ("k", 1, ""),
        ("k", 64, ""),
        ("k", 65, "k must be 1 to 64"),
        ("bits", 3, "bits must be 4 to 36"),
        ("bits", 4, ""),
        ("bits", 36, ""),
        ("bits", 37, "bits must be 4 to 36"),
        ("lr", False, ""),
        ("ffm", False, ""),
        ("hidden", [], ""),
        ("hidden", [1] * 8, ""),
        ("hidden", [1] * 9, "hidden must have at most 8 layers"),
        ("hidden", [8, 0], "a hidden layer must have 1 to 1024 neurons"),
        ("hidden", [1024], ""),
        ("hidden", [1025], "a hidden layer must have 1 to 1024 neurons"),
        ("ffm_init", 0.0, ""),
        ("ffm_init", 10.0, ""),
        ("ffm_init", 10.001, "ffm_init must be 0 to 10"),
        ("ffm_init", -0.001, "ffm_init must be 0 to 10"),
        ("ffm_init", math.nan, "ffm_init must be 0 to 10"),
        *((rates, (1000.0, 0.0, 1e10), "") for rates in ("lr_rates", "ffm_rates", "nn_rates")),
        *((rates, (1e-9, 1.0, 1e-10), "") for rates in ("lr_rates", "ffm_rates", "nn_rates")),
        *((rates, (0.0, 0.5, 1.0), RATES) for rates in ("lr_rates", "ffm_rates", "nn_rates")),
        ("lr_rates", (1000.1, 0.5, 1.0), RATES),
        ("ffm_rates", (0.1, -0.001, 1.0), RATES),
        ("ffm_rates", (0.1, 1.001, 1.0), RATES),
        ("nn_rates", (0.1, 0.5, 0.9e-10), RATES),
        ("nn_rates", (0.1, 0.5, 1.1e10), RATES),
        ("nn_rates", (math.nan, 0.5, 1.0), RATES),
    ],
)
def test_settings_of_a_deep_ffm_have_their_ranges(name: str, value: Any, expected: str) -> None:
    if isinstance(value, tuple):
        value = native.BlockRates(*value)
    more = {"fields": 1} if name == "bits" else {"bits": 16}
    assert settings(**{**more, name: value}).wrong() == expected


def test_a_row_of_every_field_fits_into_the_weights() -> None:
    assert settings(fields=16, k=4, bits=6).wrong() == ""  # 16 fields of 4 floats: 64 weights
    assert settings(fields=17, k=4, bits=6).wrong() == "bits is too small: 2^bits weights cannot hold one row of 80"
    assert settings(fields=17, k=4, bits=6, ffm=False).wrong() == ""
    assert settings(lr=False, ffm=False).wrong() == "lr and ffm cannot both be off"
    with pytest.raises(ValueError, match="lr and ffm cannot both be off"):
        native.DeepFfm(settings(lr=False, ffm=False))


def test_a_model_has_as_many_weights_as_its_layout() -> None:
    """lr: 2^bits; ffm: rows of one float for each field and factor, in 16s; dense: a bias, and layers of inputs + 1 in 16s."""
    assert settings(ffm=False, hidden=[]).weights() == 1024 + 1
    plain = settings(hidden=[])
    model = native.DeepFfm(plain)
    lr, rows, dense = model.parts
    assert (lr, model.stride, dense) == (1024, 16, 1)
    assert model.weights().size == plain.weights() == lr + rows * 16 + 1
    for wrong in (lr - 1, model.weights().size - 1, model.weights().size + 1):
        with pytest.raises(ValueError, match="the number of weights differs from that of the model"):
            model.give_weights(model.weights().repeat(2)[:wrong])
