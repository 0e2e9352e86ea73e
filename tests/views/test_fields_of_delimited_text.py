"""What single fields of text become, at the borders of each form, and the words for those that fit none."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.views.fields_of_delimited_text import (
    FIRST_TRIED,
    TIMES,
    Misfit,
    convert,
    exact_whole,
    expected,
    fits,
    infer,
    infer_time,
    name_of_type,
)

INT, FLOAT, BOOL, TIME, TEXT = pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.utf8()


@pytest.mark.parametrize(
    ("type", "words"),
    [
        (INT, "a whole number of at most 64 bits without leading zeros (int)"),
        (FLOAT, "a decimal number, or a whole number that a double holds exactly (float)"),
        (BOOL, "true or false (bool)"),
        (TIME, "an ISO 8601 date or time without a zone (time)"),
        (pa.timestamp("ns", "UTC"), "an ISO 8601 date or time with a zone (time)"),
        (TEXT, "text (str)"),
    ],
)
def test_a_field_that_does_not_fit_is_told_the_form_that_would(type: pa.DataType, words: str) -> None:
    assert expected(type) == words
    assert str(Misfit(3, "x", type)) == f"'x' is not {words}"


@pytest.mark.parametrize(
    ("type", "name"),
    [
        (INT, "int"),
        (FLOAT, "float"),
        (BOOL, "bool"),
        (TIME, "time"),
        (pa.timestamp("ns", "UTC"), "time"),
        (TEXT, "str"),
        (pa.int8(), "int8"),
    ],
)
def test_a_type_has_the_name_that_types_takes(type: pa.DataType, name: str) -> None:
    assert name_of_type(type) == name


def test_a_long_field_is_shown_by_its_beginning() -> None:
    assert repr("x" * 60) in str(Misfit(0, "x" * 60, INT))
    assert repr("x" * 57 + "...") in str(Misfit(0, "x" * 61, INT))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("0", 0),
        ("9", 9),
        ("-1", -1),
        ("-9", -9),
        ("10", 10),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        *((field, None) for field in ("-0", "00", "01", "-01", "+1", " 1", "1 ", "1.", ".1", "-", "", "0x1F", "1e3")),
        ("9223372036854775808", None),
        (":", None),  # the letters beside the digits in ASCII
        ("/", None),
        ("1:", None),
        ("1/", None),
        (":1", None),
        ("/1", None),
    ],
)
def test_a_whole_number_has_one_way_to_be_written(field: str, value: int | None) -> None:
    for texts in (pa.array([field]), pa.array(["7", field, "8"]).slice(1, 1), pa.array([None, field])):
        if value is None:
            with pytest.raises(Misfit) as caught:
                convert(texts, INT)
            assert (caught.value.row, caught.value.value) == (len(texts) - 1, field)
        else:
            assert convert(texts, INT).to_pylist() == [None] * (len(texts) - 1) + [value]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("0", 0.0),
        ("-0", -0.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.5", -0.5),
        ("1e3", 1000.0),
        ("nan", math.nan),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("9007199254740992", 2.0**53),
        ("9007199254740994", 2.0**53 + 2),
        ("-9223372036854774784", -float(2**63 - 1024)),
        *(
            (field, None)
            for field in ("", "-", "00.5", "01", "-01.5", "+1", " 1", "1 ", "nan(x)", "x", "1e999", "-1e999")
        ),
        ("9007199254740993", None),
        ("9223372036854775808", None),
        ("-9223372036854775808", None),
    ],
)
def test_a_decimal_number_keeps_its_value_or_is_refused(field: str, value: float | None) -> None:
    texts = pa.array(["1.5", None, field])
    if value is None:
        with pytest.raises(Misfit) as caught:
            convert(texts, FLOAT)
        assert (caught.value.row, caught.value.value) == (2, field)
        assert not fits(texts, FLOAT)
    else:
        found = convert(texts, FLOAT).to_pylist()
        assert found[:2] == [1.5, None]
        assert repr(found[2]) == repr(value)
        assert fits(texts, FLOAT)


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("9007199254740993", False),
        ("9007199254740992", True),
        ("9007199254740993.0", True),
        ("9007199254740993e0", True),
        (str(2**63 - 1024), True),
        (str(2**63), False),
        (str(-(2**63)), False),
        ("12", True),
    ],
)
def test_a_whole_number_is_a_double_only_without_a_loss(text: str, exact: bool) -> None:
    assert exact_whole(text) is exact


@pytest.mark.parametrize(
    ("fields", "type"),
    [
        ([None, None], TEXT),
        ([], TEXT),
        (["1", None, "-2"], INT),
        (["1", "2.5"], FLOAT),
        (["nan"], TEXT),
        (["inf", "nan"], TEXT),
        (["nan", "1"], FLOAT),
        (["true", "FALSE"], BOOL),
        (["true", "no"], TEXT),
        (["2026-01-02", None], TIME),
        (["2026-01-02T03:04:05Z"], pa.timestamp("us", "UTC")),
        (["2026-01-02T03:04:05.123456789"], pa.timestamp("ns")),
        (["2026-01-02T03:04:05.123456789Z"], pa.timestamp("ns", "UTC")),
        (["2026-01-02T03:04:05Z", "2026-01-02T03:04:05"], TEXT),
        (["007", "8"], TEXT),
        (["", "8"], TEXT),
    ],
)
def test_the_type_of_a_column_comes_from_all_its_fields(fields: list[str | None], type: pa.DataType) -> None:
    assert infer(pa.array(fields, TEXT)) == type


def fits_as_a_whole(texts: pa.Array, type: pa.DataType) -> bool:
    """The slow twin of `fits`: converts the whole column."""
    try:
        convert(texts, type)
    except Misfit:
        return False
    return True


def inferred_as_a_whole(texts: pa.Array) -> pa.DataType:
    """The slow twin of `infer`."""
    met = texts.drop_null()
    for type in (INT, FLOAT, BOOL, *TIMES) if len(met) else ():
        if fits_as_a_whole(met, type) and not (type == FLOAT and not pc.any(pc.is_finite(met.cast(FLOAT))).as_py()):
            return type
    return TEXT


DATES = ["2026-01-02", "2026-01-02 03:04", "2026-01-02T03:04:05", "0001-01-01", "9999-12-31"]
ZONED = ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5+01:00"]
FINE = ["2026-01-02T03:04:05.123456789", "2262-04-11T23:47:16.854775807"]
NUMBERS = ["0", "7", "-3", "9007199254740993", "9223372036854775808", "0.5", "1e300", "nan", "-inf", "1e999"]
OTHERS = ["", " ", "2026", "2026-1-2", "2026-02-30", "Private", "<=50K", "true", "False", "007", "+5", "½", None]
RUNS = st.one_of(*(st.sampled_from(kind) for kind in (DATES, ZONED, FINE, NUMBERS, ["true", "FALSE", None], OTHERS)))


@given(
    st.lists(
        st.tuples(RUNS, st.sampled_from([1, 1, 2, FIRST_TRIED - 1, FIRST_TRIED, 9 * FIRST_TRIED, 200])), max_size=5
    ),
    st.integers(0, 3),
)
@settings(deadline=None, max_examples=300)
def test_a_column_has_the_type_that_it_has_when_all_its_fields_are_converted_at_once(
    runs: list[tuple[str | None, int]], skipped: int
) -> None:
    texts = pa.array([field for field, times in runs for _ in range(times)], TEXT).slice(skipped)
    assert infer(texts) == inferred_as_a_whole(texts)
    for type in (INT, FLOAT, BOOL, *TIMES, TEXT):
        assert fits(texts, type) == fits_as_a_whole(texts, type)
    assert infer_time(texts) == next((t for t in TIMES if fits_as_a_whole(texts.drop_null(), t)), TIMES[0])


def test_the_type_of_a_column_of_words_costs_less_than_one_cast_of_it() -> None:
    texts = pa.array(["Private", "Self-emp-not-inc"] * 50_000)
    begun = time.process_time()
    with pytest.raises(pa.ArrowInvalid):
        texts.cast(TIME)
    one_cast = time.process_time() - begun
    begun = time.process_time()
    assert infer(texts) == TEXT
    assert time.process_time() - begun < one_cast


def test_a_column_declared_a_time_has_the_first_kind_of_time_that_fits() -> None:
    assert infer_time(pa.array(["2026-01-02", None])) == TIME
    assert infer_time(pa.array(["2026-01-02T03:04:05.123456789Z"])) == pa.timestamp("ns", "UTC")
    assert infer_time(pa.array(["yesterday"])) == TIME


@pytest.mark.parametrize(
    ("fields", "type", "values"),
    [
        (["a", None], TEXT, ["a", None]),
        (
            ["true", "False", None, "TRUE", "false", "FALSE", "True"],
            BOOL,
            [True, False, None, True, False, False, True],
        ),
        (["2026-01-02", None], TIME, [datetime(2026, 1, 2), None]),
        ([None, None], INT, [None, None]),
        ([None, None], FLOAT, [None, None]),
        ([], INT, []),
    ],
)
def test_fields_become_values_and_absent_ones_stay_absent(
    fields: list[str | None], type: pa.DataType, values: list[Any]
) -> None:
    assert convert(pa.array(fields, TEXT), type).to_pylist() == values


@pytest.mark.parametrize("bad", range(6))
@pytest.mark.parametrize(("type", "good"), [(INT, "1"), (FLOAT, "0.5"), (BOOL, "true"), (TIME, "2026-01-02")])
def test_the_first_field_that_does_not_fit_is_named(bad: int, type: pa.DataType, good: str) -> None:
    fields = [good] * 6
    fields[bad:] = ["1x1"] * (6 - bad)
    with pytest.raises(Misfit) as caught:
        convert(pa.array(fields), type)
    assert (caught.value.row, caught.value.value) == (bad, "1x1")
