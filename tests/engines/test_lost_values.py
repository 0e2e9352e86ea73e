"""Values that a cast cannot convert, and numbers whose unit is wrong: counted, shown, and warned of where all are lost."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.cli.training_summary import told_losses
from ctrbox.engines.lost_values import CastCount
from ctrbox.engines.missed_keys import FIRST_KEYS
from ctrbox.report.write_report import write_report


def view_of(**columns: Any) -> cb.View:
    rows = len(next(iter(columns.values())))
    return cb.View(pa.table({"id": np.arange(rows), "clicked": np.arange(rows) % 2, **columns}), key="id", name="log")


def plan_of(view: cb.View, dense: dict[str, Any], **options: Any) -> cb.Plan:
    features = cb.FeatureSet(label=col("clicked"), dense=dense)
    return cb.compile(view, features, **{"device": "cpu", "threads": 2, "chunk_rows": 16, **options})


def run(plan: cb.Plan, rows: int = 500) -> list[str]:
    """Run all batches and return what was warned of."""
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        list(plan.batches(rows))
    return [str(w.message) for w in met]


TEXTS = st.one_of(
    st.none(), st.sampled_from(["", " 1", "1", "-7", "2.5", "1e3", "x", "2026-01-31", "31/01/2026", "nan", "½"])
)


def is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip() and text.isascii()


READS: dict[str, Callable[[str], bool]] = {
    "int": lambda text: text.lstrip("+-").isdecimal() and text.isascii(),
    "float": is_float,
    "time": lambda text: text == "2026-01-31",
}


@given(st.lists(TEXTS, min_size=1, max_size=80), st.sampled_from(sorted(READS)))
@settings(max_examples=40, deadline=None)
def test_values_that_a_cast_loses_are_counted_as_one_by_one(texts: list[str | None], to: str) -> None:
    value = col("x").cast(to)
    made = value.hour().fill(-1) if to == "time" else value.fill(-1)
    plan = plan_of(view_of(x=pa.array(texts, pa.string())), {"a": made}, threads=1)
    told = run(plan, 7)
    present = [text for text in texts if text is not None]
    lost = [text for text in present if not READS[to](text)]
    expected = [CastCount(f"cast('{to}')", "x", len(present), len(lost), lost[0] if lost else None)]
    assert plan.casts == (expected if present else [])
    assert plan.warnings == ({f"cast('{to}') of 'x'": len(lost)} if lost else {})
    assert any("could be converted" in text for text in told) == (bool(lost) and len(lost) == len(present))


def test_dates_of_another_format_are_warned_of_with_the_first_batch() -> None:
    view = view_of(time=["31/12/2026 10:00"] * (3 * FIRST_KEYS)).cast(time="time").filter(col("time").is_not_null())
    plan = plan_of(view, {"hour": col("time").hour()})
    told = run(plan, FIRST_KEYS)
    assert len(told) == 1
    assert told[0].startswith("none of the first ")
    for words in (
        "values of 'time'",
        "cast('time')",
        "all of them are null",
        "'31/12/2026 10:00'",
        "2026-01-31T09:30:00Z",
    ):
        assert words in told[0]
    assert run(plan) == []  # once is enough


def test_a_cast_that_reads_some_values_counts_and_does_not_warn() -> None:
    plan = plan_of(view_of(x=["1", "2", "three", "4", ""]), {"x": col("x").cast("int").fill(0)})
    assert run(plan) == []
    assert plan.warnings == {"cast('int') of 'x'": 2}
    assert plan.casts == [CastCount("cast('int')", "x", 5, 2, "three")]


TIME = "an ISO 8601 time such as '2026-01-31' or '2026-01-31T09:30:00Z'"


@pytest.mark.parametrize(
    ("text", "to", "expected"),
    [
        (
            "1700000000",
            "time",
            f"{TIME}; a number of seconds since 1970 is read by .cast('int').cast('time', unit='s')",
        ),
        ("-17", "time", f"{TIME}; a number of seconds since 1970 is read by .cast('int').cast('time', unit='s')"),
        (" 2026-01-31", "time", f"{TIME}; remove the white space first: .strip()"),
        (
            "31.12.2026",
            "time",
            f"{TIME}; rewrite other formats before the view reads them, for example with "
            "pandas.to_datetime(…, format=…)",
        ),
        (
            "3.0",
            "int",
            "a whole number such as '17'; a number with a fraction is read by .cast('float'), and "
            ".round().cast('int') then makes it whole",
        ),
        ("1,5", "int", "a whole number such as '17'"),
        ("1,5", "float", "a number such as '0.5'; replace a decimal comma first: .replace(',', '.')"),
        ("1.5.2", "float", "a number such as '0.5'"),
    ],
)
def test_the_warning_says_what_would_make_the_values_fit(text: str, to: str, expected: str) -> None:
    value = col("x").cast(to)
    made = value.hour().fill(-1) if to == "time" else value.fill(-1)
    assert run(plan_of(view_of(x=[text] * 3), {"a": made})) == [
        f"none of the first 3 values of 'x' could be converted by cast({to!r}), so all of them are null; the first is "
        f"{text!r}; expected {expected}"
    ]


def test_the_warning_of_floats_and_of_lists_says_what_cannot_be_converted() -> None:
    floats = plan_of(view_of(x=[float("nan")] * 3), {"a": col("x").cast("int").fill(0)})
    assert run(floats) == [
        "none of the first 3 values of 'x' could be converted by cast('int'), so all of them are null; the first is 'nan'; "
        "NaN, infinite numbers and numbers beyond 64 bits cannot be converted to whole numbers"
    ]
    lists = plan_of(view_of(x=["b c"] * 3), {"a": col("x").split(" ").cast("int").length()})
    assert run(lists) == [
        "none of the first 3 values of 'x' keeps all of its elements when cast('int') converts it; expected a whole number "
        "such as '17'"
    ]


def test_numbers_without_a_whole_number_are_counted() -> None:
    plan = plan_of(view_of(x=[1.0, float("nan"), float("inf"), 2.9]), {"x": col("x").cast("int").fill(0)})
    run(plan)
    assert plan.casts == [CastCount("cast('int')", "x", 4, 2, "nan")]


def test_rows_whose_list_loses_an_element_are_counted() -> None:
    plan = plan_of(view_of(x=["1 2", "1 b", "", "7"]), {"n": col("x").split(" ").cast("int").length()})
    run(plan)
    assert plan.casts == [CastCount("cast('int')", "x", 4, 1, None)]


VALUES = st.sampled_from(
    [None, True, False, 0, 1, -7, 2.5, 1e300, 2**63, "", "17", [], [1, None, 2], [1, "2"], ["a", 3], [[1]], {"a": 1}]
)


def is_whole(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == int(value) and -(2**63) <= value < 2**63


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def only(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(item is None or good(item) for item in value)


TAKES: dict[str, Callable[[Any], bool]] = {
    "int": is_whole,
    "float": is_number,
    "bool": lambda value: isinstance(value, bool),
    "list[int]": only(is_whole),
    "list[float]": only(is_number),
    "list[str]": only(lambda value: True),
}

FILLS = {"bool": False}


def lost_in(value: Any, to: str) -> Any:
    """Return what a path loses of a value: the first element of another type, or the value itself."""
    if to.startswith("list") and isinstance(value, list):
        return next(item for item in value if item is not None and not TAKES[to]([item]))
    return value


@given(
    st.lists(st.one_of(st.none(), st.just("x"), VALUES.map(lambda v: {"v": v}), st.just({})), min_size=1, max_size=60)
)
@settings(max_examples=60, deadline=None)
def test_json_values_of_another_type_are_counted_as_one_by_one(documents: list[Any]) -> None:
    texts = [None if d is None else "{x" if d == "x" else json.dumps(d) for d in documents]
    made = {
        to: (col("x").json("$.v", to).length() if to.startswith("list") else col("x").json("$.v", to)).fill(
            FILLS.get(to, 0)
        )
        for to in TAKES
    }
    made["text"] = col("x").json("$.v").is_null().cast("int")
    plan = plan_of(view_of(x=pa.array(texts, pa.string())), made, threads=1)
    run(plan, 7)
    present = [d["v"] for d in documents if isinstance(d, dict) and d.get("v") is not None]
    found = {cast.cast: cast for cast in plan.casts}
    for to, takes in TAKES.items():
        lost = [value for value in present if not takes(value)]
        example = json.dumps(lost_in(lost[0], to)) if lost else None
        name = f"json('$.v', '{to}')"
        expected = CastCount(name, "x", len(present), len(lost), example)
        assert found.pop(name, None) == (expected if present else None)
        assert plan.warnings.get(f"{name} of 'x'", 0) == len(lost)
    assert not found  # every value has a text


@pytest.mark.parametrize(
    ("value", "to", "advice"),
    [
        ('"17"', "int", "; a number that is written as text is read by .json('$.v').cast('int')"),
        ('"17"', "float", "; a number that is written as text is read by .json('$.v').cast('float')"),
        ('"x"', "bool", ""),
        (
            '["17"]',
            "list[float]",
            "; numbers that are written as text are read by .json('$.v', 'list[str]').cast('float')",
        ),
        ('"17"', "list[int]", "; numbers that are written as text are read by .json('$.v', 'list[str]').cast('int')"),
        ("2", "list[str]", ""),
        ("{}", "list[int]", ""),
        ("1", "bool", "; a bool that is written as 0 or 1 is read by .json('$.v', 'int') == 1"),
        ("1.5", "int", "; a fraction is read by .json('$.v', 'float')"),
        ("-1.5", "int", "; a fraction is read by .json('$.v', 'float')"),
        ("true", "int", ""),
        ("[1]", "float", "; a list is read by .json('$.v', 'list[float]')"),
        ("[1]", "int", "; a list is read by .json('$.v', 'list[int]')"),
        ("[1]", "bool", "; a list is read by .json('$.v', 'list[str]')"),
        ("{}", "float", ""),
    ],
)
def test_a_json_path_that_finds_only_other_types_is_warned_of(value: str, to: str, advice: str) -> None:
    made = col("x").json("$.v", to)
    feature = (made.length() if to.startswith("list") else made).fill(FILLS.get(to, 0))
    first = value.strip("[]") if to.startswith("list") else value
    assert run(plan_of(view_of(x=[f'{{"v": {value}}}'] * 3), {"a": feature})) == [
        f"none of the first 3 values that json('$.v', '{to}') finds in 'x' can be read, so they are all null or left out of "
        f"their lists; the first is {first!r}; expected values of type {to}{advice}"
    ]


def test_more_json_paths_than_one_scan_takes_are_counted_each() -> None:
    document = json.dumps({f"k{k}": k if k % 2 else str(k) for k in range(40)})
    view = view_of(x=[document] * 5)
    plan = plan_of(view, {f"k{k}": col("x").json(f"$.k{k}", "int").fill(0) for k in range(40)})
    run(plan)
    assert plan.warnings == {f"json('$.k{k}', 'int') of 'x'": 5 for k in range(0, 40, 2)}


def test_casts_of_joined_views_are_counted_once_a_row_of_the_view() -> None:
    users = cb.View(pa.table({"user": [0, 1, 2], "age": ["17", "x", "30"]}), key="user", name="users")
    view = view_of(user=np.arange(60) % 3).join(users.cast(age="int").fill(age=0), on="user")
    plan = plan_of(view, {"age": col("age")})
    run(plan)
    assert plan.casts == [CastCount("cast('int')", "age", 3, 1, "x")]


def test_a_cast_before_and_behind_a_users_operator_counts_its_rows_once() -> None:
    @cb.operator(args=["int"], result="int")
    def twice(x: Any) -> Any:
        return x * 2

    number = col("x").cast("int").fill(0)
    plan = plan_of(view_of(x=["1", "b", "3"]), {"a": twice(number), "b": number})
    run(plan)
    assert plan.warnings == {"cast('int') of 'x'": 1}


# ---- units of time

SECONDS = 1_700_000_000  # 2023-11-14


@pytest.mark.parametrize(
    ("number", "unit", "told"),
    [
        (SECONDS, "ms", "which is 2023-11-14 when it counts seconds: use unit='s'"),
        (SECONDS, "us", "which is 2023-11-14 when it counts seconds: use unit='s'"),
        (SECONDS, "ns", "which is 2023-11-14 when it counts seconds: use unit='s'"),
        (SECONDS * 1000, "us", "which is 2023-11-14 when it counts milliseconds: use unit='ms'"),
        (0, "s", "in January 1970; the first is 0 s after 1970: check the unit"),
        (10 * SECONDS, "s", "in the year 2200 or later; the first is 17000000000 s after 1970: check the unit"),
    ],
)
def test_a_wrong_unit_is_warned_of_with_the_likely_one(number: int, unit: str, told: str) -> None:
    view = view_of(ts=[number] * 40)
    plan = plan_of(view, {"hour": col("ts").cast("time", unit=unit).hour().fill(-1)}, threads=1, chunk_rows=64)
    where = told if "check" in told else f"in January 1970; the first number is {number}, {told}"
    assert run(plan, 40) == [f"all of the first 40 times that cast('time', unit={unit!r}) makes of 'ts' lie {where}"]


def test_a_wrong_unit_is_warned_of_once_where_a_plan_is_fitted_first() -> None:
    view = view_of(ts=[SECONDS * 1000] * 40, ad=[1, 2] * 20).with_columns(t=col("ts").cast("time", unit="us"))
    view = view.filter(col("t").is_not_null())
    plan = plan_of(view, {"rate": cb.rate("ad", time="t", label="clicked", every="1h"), "hour": col("t").hour()})
    (said,) = run(plan, 40)
    assert "lie in January 1970" in said
    assert run(plan, 40) == []
    assert len(run(plan.using(threads=1), 40)) == 1  # another program of the same plan


@pytest.mark.parametrize(
    ("number", "unit", "name", "finer"),
    [
        (SECONDS * 1000, "s", "seconds", "unit='ms' or unit='us' or unit='ns'"),
        (SECONDS * 10**6, "ms", "milliseconds", "unit='us' or unit='ns'"),
        (SECONDS * 10**9, "us", "microseconds", "unit='ns'"),
    ],
)
def test_numbers_too_large_for_their_unit_are_warned_of_with_the_finer_ones(
    number: int, unit: str, name: str, finer: str
) -> None:
    plan = plan_of(view_of(ts=[number] * 40), {"hour": col("ts").cast("time", unit=unit).hour().fill(-1)}, threads=1)
    assert run(plan, 40) == [
        f"none of the first 40 values of 'ts' lies within the years 0001 to 9999 when it counts {name} since 1970, so "
        f"cast('time', unit={unit!r}) makes all of them null; numbers this large usually count a finer unit: {finer}"
    ]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
def test_the_right_unit_is_not_warned_of(unit: str, factor: int) -> None:
    view = view_of(ts=[SECONDS * factor + k for k in range(40)])
    plan = plan_of(view, {"hour": col("ts").cast("time", unit=unit).hour().fill(-1)})
    assert run(plan) == []
    assert plan.warnings == {}
    assert plan.casts == [CastCount(f"cast('time', unit={unit!r})", "ts", 40, 0)]


def test_one_time_elsewhere_is_enough_not_to_warn() -> None:
    view = view_of(ts=[0, 1, 2, SECONDS])
    plan = plan_of(view, {"hour": col("ts").cast("time", unit="s").hour().fill(-1)})
    assert run(plan) == []


def test_numbers_outside_the_years_are_counted_as_lost() -> None:
    view = view_of(ts=[SECONDS, SECONDS * 1000, None, -(10**15)])
    plan = plan_of(view, {"hour": col("ts").cast("time", unit="s").hour().fill(-1)})
    assert run(plan) == []
    assert plan.warnings == {"cast('time', unit='s') of 'ts'": 2}


def test_a_product_before_the_cast_is_not_taken_for_its_unit() -> None:
    view = view_of(ts=[SECONDS] * 3)
    plan = plan_of(view, {"hour": (col("ts") * 1000).cast("time", unit="us").hour().fill(-1)})
    (told,) = run(plan)
    assert "cast('time', unit='us')" in told
    assert "use unit='ms'" in told


# ---- where it is shown


def test_a_training_its_report_and_its_last_lines_show_what_casts_lost(tmp_path: Path) -> None:
    texts = [f"{k % 7}" if k % 4 else "<n/a>" for k in range(400)]
    plan = plan_of(view_of(x=texts), {"x": col("x").cast("int").fill(0)})
    plan = cb.compile(
        plan.log, cb.FeatureSet(label=col("clicked"), sparse={"word": col("x")}, dense=plan.features.dense)
    )
    run = cb.Trainer(cb.models.LR(plan.schema), threads=1).fit(plan, batch_size=50, out=tmp_path / "run")
    summary = run.summary
    (cast,) = summary["casts"]
    assert cast["example"] == "<n/a>"
    assert summary["warnings"] == {"cast('int') of 'x'": cast["lost"]}
    page = write_report(tmp_path / "run").read_text()
    assert "cast(&#x27;int&#x27;) of &#x27;x&#x27;" in page
    assert "&lt;n/a&gt;" in page
    (line,) = told_losses(summary["warnings"], summary["casts"])
    counted = f"{cast['lost']:,} of {cast['values']:,} values could not be converted and are null"
    assert line == f"  warning: cast('int') of 'x': {counted} (the first is '<n/a>')"
