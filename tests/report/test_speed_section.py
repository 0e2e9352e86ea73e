"""The head of the report, its sections about speed, and how recorded fields and passes are read: small inputs, exact texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ctrbox.embed.embedder_traits import Traits
from ctrbox.errors import DataError, SourceError
from ctrbox.report import speed_section
from ctrbox.report import write_report as report
from ctrbox.report.number_format import brief, few_groups, figure_table, remarks
from ctrbox.report.read_recorded_files import Fields, Recorded, read_lines
from ctrbox.train import pass_times
from ctrbox.train.pipeline import Clock
from ctrbox.train.progress_line import Lately, Progress


def fields(**values: Any) -> Fields:
    return Fields(values, Path("summary.json"))


def words_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def rows_of(html: str) -> list[list[str]]:
    lines = re.findall(r"<tr>(.*?)</tr>", html)
    return [[words_of(c) for c in re.findall(r"<td[^>]*>(.*?)</td>", one)] for one in lines if "<td" in one]


# ---- the top


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        ({}, "A model learned; no rows were held back to test it on."),
        ({"model": "LR", "rows": {"train": 1200}, "seconds": 5.0}, "LR learned from 1,200 rows in 5.0 s; no rows"),
        ({"rows": {"train": 1200}, "epochs": 2, "seconds": 5.0}, "learned from 600 rows, 2 epochs, in 5.0 s; no rows"),
        (
            {"rows": {"train": 1200}, "epochs": 2, "stopped": "enough"},
            "1,200 rows over 2 epochs, counting a row once per",
        ),
        (
            {"rows": {"train": 1200}, "epochs": 2, "settings": {"negatives": 0.5}},
            "learned from 1,200 rows over 2 epochs",
        ),
        (
            {"rows": {"train": 1201}, "epochs": 2},
            "learned from 1,201 rows over 2 epochs, counting a row once per epoch;",
        ),
        ({"rows": {"valid": 0}}, "A model learned; no rows were held back"),
        ({"rows": {"valid": 7}}, "learned and was tested on 7 rows that it had not learned from, rows of another log."),
        ({"rows": {"valid": 7}, "held": {"start": 1}}, "it had not learned from, the last rows of the log."),
        ({"metrics": {"auc": 0.75}}, "a non-click in 75.0% of all click/non-click pairs."),
        ({"metrics": {"auc": 0.75, "auc_low": 0.5, "auc_high": 1.0}}, "click pairs (95 % interval 50.0% to 100.0%)."),
        ({"metrics": {"auc": 0.75, "best_auc": 0.8}}, "The best possible model would reach 80.0% on this data."),
        ({"rows": {"valid": 7}, "settings": {"patience": 2}}, "The same rows decided when to stop training"),
    ],
)
def test_the_heading_tells_what_was_learned_and_tested(summary: dict[str, Any], sentence: str) -> None:
    assert sentence in words_of(report.heading(fields(**summary)))


def test_the_heading_tells_nothing_that_is_not_known() -> None:
    bare = report.heading(fields(metrics={"best_auc": 0.8}, settings={"patience": 2}))
    for absent in ("best possible", "decided when to stop", "<span>on", "%"):
        assert absent not in bare
    full = report.heading(fields(data="log", finished="2026-11-05T08:03:00+00:00", machine="2 cores"))
    assert "<span>on <bdi>log</bdi></span>" in full
    assert "5 November 2026, 08:03 · 2 cores" in full
    assert report.heading(fields(started="2026-11-05T08:03:00")).endswith('<p class="when">5 November 2026, 08:03</p>')
    assert report.moment("some day") == "some day"


def cards(**summary: Any) -> dict[str, str]:
    found = re.findall(
        r'<small class="what">(.*?)</small><b>(.*?)</b><small>(.*?)</small>', report.headline(fields(**summary))
    )
    return {name: f"{value} | {note}" for name, value, note in found}


def test_headline_figures_stand_with_their_intervals() -> None:
    metrics = {"auc": 0.75, "auc_low": 0.5, "auc_high": 1.0, "gauc": 0.5, "gauc_groups": 1000, "logloss": 0.5}
    metrics |= {"best_constant_logloss": 0.6, "rig": 0.25, "calibration": 1.25, "base_rate": 0.125}
    found = cards(
        metrics=metrics, rows_per_second=99_999, intermediate_bytes=2048, table={"keys": 1234, "bytes": 1 << 20}
    )
    assert found == {
        "AUC": "0.7500 | 95 %: 0.5000 to 1.0000<br>how often a click outranks a non-click",
        "GAUC": "0.5000 | AUC within a group over 1,000 groups with clicks and non-clicks",
        "Log loss": "0.5000 | always predicting the click rate gives 0.6000",
        "Information gain": "25.0% | lower log loss than always predicting the click rate (RIG)",
        "Calibration": "1.250 | predicted ÷ actual clicks; 12.50% of rows clicked",
        "Rows per second": "99,999 | 1,234 keys in 1.0 MiB",
        "Intermediate files": "2.0 KiB | between raw log and model",
    }


def test_headline_figures_that_are_not_known_are_dashes() -> None:
    found = cards()
    assert found["AUC"] == "– | how often a click outranks a non-click"
    assert "GAUC" not in found
    assert found["Log loss"] == "– | nats per row"
    assert found["Information gain"].startswith("– |")
    assert found["Calibration"] == "– | predicted ÷ actual clicks"
    assert found["Rows per second"] == "– | from raw log to weights"
    assert found["Intermediate files"].startswith("– |")
    assert cards(table={"keys": 0})["Rows per second"] == "– | 0 keys"


@pytest.mark.parametrize(("best", "tone"), [(0.7599, "good"), (0.77, "bad"), (0.74, "good")])
def test_a_gap_of_up_to_one_percent_to_the_best_possible_auc_is_good(best: float, tone: str) -> None:
    found = cards(metrics={"auc": 0.75, "best_auc": best})["AUC"]
    assert found == f'0.7500 | best possible {best:.4f}, gap <span class="{tone}">{best - 0.75:.4f}</span>'
    assert "best possible" not in cards(metrics={"best_auc": best})["AUC"]
    assert 'class="good"' in cards(metrics={"auc": 0.0, "best_auc": 0.01})["AUC"]


@pytest.mark.parametrize(
    ("speed", "shown"), [(None, "–"), (99_999.0, "99,999"), (100_000.0, "100k"), (1_234_567.0, "1.23M")]
)
def test_rates_fit_into_a_card(speed: float | None, shown: str) -> None:
    assert report.rate(speed) == shown


# ---- joins, warnings, settings


def test_joins_tell_the_share_of_keys_without_a_row() -> None:
    found = report.joins(
        fields(
            joins=[
                {"view": "users", "on": ["user", "day"], "keys": 1000, "missed": 125},
                {"view": "ads", "on": "ad", "keys": 10},
                {"view": "none", "keys": 0, "missed": 3},
            ]
        )
    )
    assert rows_of(found) == [["users", "user, day", "1,000", "125", "12.5%"], ["ads", "", "10", "0", "0.0%"]]
    assert report.joins(fields()) == report.joins(fields(joins=[{"view": "x", "keys": 0}])) == ""


def test_warnings_that_were_met_are_counted() -> None:
    found = report.warnings(fields(warnings={"bad dates": 1200, "good dates": 0, "odd": "many"}))
    assert rows_of(found) == [["bad dates", "1,200", ""], ["odd", "many", ""]]
    assert (
        report.warnings(fields())
        == report.warnings(fields(warnings={"x": 0}))
        == report.warnings(fields(warnings=[1]))
        == ""
    )


def test_nested_settings_are_flat_names() -> None:
    assert report.flat({"a": {"b": 1, "c": {}}, "d": [1], "e": "x"}) == [
        ("a.b", "1"),
        ("a.c", "{}"),
        ("d", "[1]"),
        ("e", "x"),
    ]
    deep: dict[str, Any] = {"x": 1}
    for _ in range(7):
        deep = {"k": deep}
    assert report.flat(deep) == [("k.k.k.k.k.k.k", '{"x": 1}')]


def test_the_call_that_made_a_run_has_all_settings_that_are_not_the_usual_ones() -> None:
    def call(settings: dict[str, Any], valid: int = 0) -> str:
        config = fields(identity={"settings": settings})
        return report.reproduce(Recorded(Path("run"), config, fields(rows={"valid": valid}), [], None))

    assert call({"epochs": 2, "shuffle": 0, "clip": 0.5, "monitor": "auc", "calibrate": None}) == (
        "cb.Trainer(model, table).fit(plan, epochs=2, clip=0.5, monitor='auc', out='run')"
    )
    assert call({"valid": 0.0, "schedule": "Constant()"}) == "cb.Trainer(model, table).fit(plan, valid=0, out='run')"
    assert call({"valid": 0.0, "schedule": "Warmup(steps=3)"}, valid=9) == (
        "cb.Trainer(model, table).fit(plan, valid=valid_plan, schedule=cb.optim.Warmup(steps=3), out='run')"
    )
    assert call({"valid": 0.2, "schedule": "slower 0123456789abcdef"}) == (
        "cb.Trainer(model, table).fit(plan, valid=0.2, schedule=schedule, out='run')"
    )


@pytest.mark.parametrize("count", [400, 401])
def test_at_most_400_settings_are_listed(count: int) -> None:
    run = Recorded(Path("run"), fields(**{f"s{k}": k for k in range(count)}), fields(), [], None)
    assert len(rows_of(report.configuration(run))) == 400
    assert "Fingerprint" not in report.configuration(run)


# ---- stages


def test_stages_tell_how_busy_they_were_and_what_they_waited_for() -> None:
    stages = [
        {"name": "extract", "seconds": 2.0, "waited": 3.0, "for_room": 1.0, "rows": 5000, "utilization": 0.4},
        {"name": "learn", "seconds": 0.0, "rows": 7},
        {"name": "lookup", "seconds": 1.0, "utilization": 0.2},
    ]
    found = report.stages([], fields(stages=stages))
    for part in (
        "extract: busy 2 s",
        "extract: waiting for input 2 s",
        "extract: waiting for room 1 s",
        "lookup: busy 1 s",
    ):
        assert f"<title>{part}</title>" in found
    assert "learn: " not in found
    assert "40% busy, 2.5k rows/s when busy" in found
    assert "20% busy</text>" in found


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        ({}, ""),
        ({"stages": [{"name": "learn"}]}, ""),
        ({"stages": [{"name": "learn", "utilization": 0.6}]}, "learning , busy 60% of the time. What would help: larger"),
        ({"stages": [{"name": "learn", "utilization": 0.59}]}, "No stage is a clear bottleneck: even the stage that waits "
            "least, learning , works only 59% of the time"),
        ({"stages": [{"name": "read", "utilization": 0.7}, {"name": "learn", "utilization": 0.8}]}, "The bottleneck is "
            "learning"),
        ({"bottleneck": "read"}, "The bottleneck is reading the log . What would help: Parquet"),
        ({"bottleneck": "new"}, "The bottleneck is stage &#x27;new&#x27; ."),
        ({"bottleneck": "lookup", "tables": [{"misses": 0}]}, "The bottleneck is finding the unique keys of a batch ."),
        ({"bottleneck": "lookup", "tables": [{"misses": 1}]}, "and reading their rows from the SSD ."),
        ({"bottleneck": "learn", "tables": [{"misses": 1}]}, "The bottleneck is learning ."),
    ],
)  # fmt: skip
def test_the_bottleneck_is_named_with_what_would_help(summary: dict[str, Any], sentence: str) -> None:
    found = words_of(report.bottleneck(fields(**summary)))
    assert sentence in found
    assert bool(sentence) == bool(found)


def test_code_in_a_sentence_is_marked() -> None:
    assert report._code("a `b` c `d`") == "a <code>b</code> c <code>d</code>"


# ---- passes


def line(kind: str, number: int | None, **more: Any) -> Fields:
    return fields(kind=kind, **{"pass": number}, **more)


def test_the_later_record_of_a_pass_counts() -> None:
    lines = [
        line("stages", 2, seconds=1),
        line("stages", 1, seconds=2),
        line("table-0", 1),
        line("stages", 2, seconds=3),
    ]
    assert [p.number("seconds") for p in speed_section.passes_of([*lines, line("stages", None)], "stages")] == [
        2.0,
        3.0,
    ]


def test_times_of_a_pass_are_averages_of_the_passes_that_took_time() -> None:
    lines = [
        line("stages", 1, seconds=2, extract_busy=1, learn_busy=2, learn_for_input=0.5, extract_for_room=1, extract_queue=1),
        line("stages", 2, seconds=4, extract_busy=2, learn_busy=4, extract_queue=2),
        line("stages", 3, seconds=0.0, learn_busy=9.0),
    ]  # fmt: skip
    stages = [{"name": "extract", "queue_most": 2}, {"name": "learn", "queue_most": 5}]
    found = speed_section.stage_times(lines, fields(stages=stages))
    assert [row[1:] for row in rows_of(found)] == [
        ["1.50 s", "50%", "17%", "0%", "17%", "1.5, most 2"],
        ["0 ms", "0%", "0%", "0%", "0%", ""],
        ["3.00 s", "100%", "33%", "8%", "0%", ""],
        ["4.50 s", "150%", "", "", "", ""],
        ["3.00 s", "100%", "", "", "", ""],
    ]
    assert "Averages over 2 passes." in found
    assert "A pass takes 1.00 times as long as its slowest stage" in found
    assert "would take 1.50 times as long as a pass does." in found
    assert speed_section.stage_times(lines[2:], fields()) == ""
    assert "slowest stage" not in speed_section.stage_times([line("stages", 1, seconds=1.0)], fields())


def test_tables_tell_what_they_were_asked() -> None:
    table = {"name": "table-0", "fields": [*"abcdefg"], "asked": 10, "hits": 3, "hit_rate": 0.75, "reads_per_key": 0.5}
    found = speed_section.tables(
        [line("table-0", 1, hit_rate=0.5, asked=7)], fields(tables=[table | {"bytes_read": 1024}])
    )
    assert rows_of(found) == [["table-0", "10", "3", "", "", "", "75.0%", "0.500", "1.0 KiB", "", ""]]
    assert "a, b, c, d, e, f…" in found
    assert "hit rate: 50 at 1 pass" in found
    assert "asked for: 7 at 1 pass" in found
    assert "a, b, c, d, e, f<" in speed_section.tables([], fields(tables=[table | {"fields": [*"abcdef"]}]))
    assert len(rows_of(speed_section.tables([], fields(tables=[table] * 13)))) == 12
    assert speed_section.tables([], fields()) == ""


@pytest.mark.parametrize(("count", "dots"), [(40, True), (41, False)])
def test_up_to_forty_passes_are_dots(count: int, dots: bool) -> None:
    found = speed_section._figure([line("table-0", k, asked=k) for k in range(count)])
    assert ('class="dot a"' in found) == dots


class Counting:
    """A table that counts what it was asked, as the tables of the package do."""

    traits = Traits(statistics=True)

    def __init__(self) -> None:
        self.counts = {"asked": 0, "hits": 0, "misses": 0, "reads": 0, "keys": 0}

    def stats(self) -> dict[str, int]:
        return dict(self.counts)


def test_a_pass_ends_every_twentieth_of_an_epoch_with_what_happened_in_it() -> None:
    clock, table = Clock("learn"), Counting()
    watched = pass_times.Passes([clock], [table, object()], epochs=1)  # type: ignore[list-item]
    assert [*watched.stats] == ["table-0"]
    watched.begin(0.5)
    assert watched.number == 10
    clock.busy, clock.given, clock.depths = 2.0, 4, 6
    table.counts |= {"asked": 10, "hits": 3, "misses": 1, "reads": 5, "keys": 7}
    assert watched.end(0.549) == {}
    told = watched.end(0.55)
    assert (told["stages"]["pass"], told["stages"]["learn_busy"], told["stages"]["learn_queue"]) == (11, 2.0, 1.5)
    assert told["table-0"] == {
        "pass": 11,
        "asked": 10,
        "hits": 3,
        "misses": 1,
        "reads": 5,
        "hit_rate": 0.75,
        "reads_per_key": 0.5,
        "keys": 7,
    }
    assert not {"learn_given", "learn_depths"} & set(told["stages"])
    clock.busy = 3.5
    table.counts |= {"asked": 4, "hits": 1}  # restored: it counts from 0 again
    told = watched.end(0.65)
    assert (told["stages"]["learn_busy"], told["table-0"]["asked"], told["table-0"]["hits"]) == (1.5, 0, 0)
    assert told["table-0"]["hit_rate"] is None
    assert watched.done["stages"]["learn_busy"] == 3.5
    assert watched.end(0.7) == {}  # nothing was learned


def test_what_an_evaluation_reads_is_no_part_of_a_pass() -> None:
    clock, table = Clock("learn"), Counting()
    watched = pass_times.Passes([clock], [table], epochs=1)  # type: ignore[list-item]
    watched.begin(0.0)
    with watched.paused():
        clock.busy = 1.0
        table.counts |= {"asked": 5, "reads": 9}
    told = watched.end(1.0)
    assert (told["table-0"]["reads"], told["table-0"]["asked"], told["stages"]["learn_busy"]) == (0, 5, 1.0)


@pytest.mark.parametrize(("epochs", "each"), [(1, 20), (20, 20), (21, 19), (400, 1), (401, 1), (10_000, 1)])
def test_a_training_has_at_most_about_400_passes(epochs: int, each: int) -> None:
    assert pass_times.Passes([], [], epochs).each == each


def test_time_is_skipped_and_waits_are_no_longer_than_their_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pass_times.time, "perf_counter", lambda: now[0])
    clock = Clock("learn")
    watched = pass_times.Passes([clock], [], epochs=1)
    watched.begin(0.0)
    now[0] = 110.0
    watched.skip(4.0)
    clock.busy, clock.for_input, clock.for_room = 1.0, 50.0, 2.0
    told = watched.end(0.05)["stages"]
    assert (told["seconds"], told["learn_for_input"], told["learn_for_room"]) == (6.0, 6.0, 2.0)


# ---- recorded fields


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        ("number", None, None),
        ("number", 2, 2.0),
        ("number", float("inf"), None),
        ("number", True, "a number"),
        ("number", "2", "a number"),
        ("number", 10**400, "a number"),
        ("count", 3.0, 3),
        ("count", 0, 0),
        ("count", None, None),
        ("count", -1, "a count"),
        ("count", 0.5, "a count"),
        ("share", 0, 0.0),
        ("share", 1, 1.0),
        ("share", None, None),
        ("share", 1.001, "a share from 0 to 1"),
        ("share", -0.001, "a share from 0 to 1"),
        ("text", None, ""),
        ("text", "x", "x"),
        ("text", 1, "a text"),
        ("each", None, []),
        ("each", {}, "a list"),
        ("fields", [], "an object"),
    ],
)
def test_a_field_is_what_it_is_read_as_or_refused(read: str, value: Any, expected: Any) -> None:
    inside = Fields({"x": value}, Path("summary.json"), "metrics")
    if isinstance(expected, str) and expected.startswith("a"):
        with pytest.raises(DataError, match=rf"^summary\.json: metrics\.x is .*; expected {expected}$"):
            getattr(inside, read)("x")
    else:
        assert getattr(inside, read)("x") == expected


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([1], "a list"),
        ({"a": 1}, "an object"),
        (True, "True"),
        (10**18 - 1, "9" * 18),
        (-(10**18) + 1, "-" + "9" * 18),
        (10**18, "a very large number"),
        (-(10**18), "a very large number"),
        ("x" * 58, repr("x" * 58)),
        ("x" * 59, "'" + "x" * 58 + "…"),
        (0.5, "0.5"),
    ],
)
def test_a_refused_value_is_shown_in_at_most_sixty_characters(value: Any, shown: str) -> None:
    with pytest.raises(DataError) as caught:
        fields(x=value).fields("x") if not isinstance(value, dict) else fields(x=value).text("x")
    assert str(caught.value).startswith(f"summary.json: x is {shown}; expected ")


def test_items_of_a_list_are_named_by_their_place() -> None:
    with pytest.raises(DataError, match=r"summary.json: slices\[1\] is 5; expected an object"):
        fields(slices=[{}, 5]).each("slices")
    with pytest.raises(DataError, match=r"summary.json: slices\[1\].rows is -1; expected a count"):
        fields(slices=[{}, {"rows": -1}]).each("slices")[1].count("rows")


def test_lines_that_are_empty_are_skipped_and_damaged_ones_are_numbered(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"a": 1}\n\n  \n{"a": NaN}\n', encoding="utf-8")
    assert [one.values for one in read_lines(file)] == [{"a": 1}, {"a": None}]
    file.write_text('{"a": 1}\n\n[1]\n', encoding="utf-8")
    with pytest.raises(DataError, match=rf"^{file}:3 holds a list; expected a JSON object"):
        list(read_lines(file))
    file.write_text('{"a": 1}\n{"a" 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match=rf"^{file}:2 is damaged: .* at character 5"):
        list(read_lines(file))
    file.write_bytes(b"{\xff}")
    with pytest.raises(DataError, match="byte 1 is not UTF-8"):
        list(read_lines(file))
    with pytest.raises(
        SourceError,
        match=r"there is no .*absent, so the run folder is not complete; resume the run, or restore the folder from a copy",
    ):
        list(read_lines(tmp_path / "absent"))


# ---- words


METRICS = {
    "auc": 0.75,
    "auc_low": 0.5,
    "auc_high": 1.0,
    "logloss": 0.25,
    "rig": float("nan"),
    "rows": 1200.0,
    "clicks": 3.0,
}


def test_main_figures_on_one_line() -> None:
    assert brief(METRICS) == "AUC 0.7500  log loss 0.2500"
    assert brief({**METRICS, "weighted_auc": 0.5, "weighted_logloss": float("nan")}) == (
        "AUC 0.7500  log loss 0.2500  (by weight: AUC 0.5000)"
    )


def test_a_table_of_figures_has_intervals_and_weighted_figures() -> None:
    lines = figure_table({**METRICS, "weighted_logloss": 0.125, "weighted_auc": float("nan"), "logloss_low": 0.1})
    assert [line.split() for line in lines] == [
        ["95", "%", "interval", "by", "weight"],
        ["AUC", "0.7500", "0.5000", "to", "1.0000"],
        ["GAUC", "-"],
        ["log", "loss", "0.2500", "0.1250"],
        ["RIG", "-"],
        ["calibration", "-"],
        ["click", "rate", "-"],
        ["mean", "prediction", "-"],
        ["rows", "1,200"],
        ["clicks", "3"],
    ]
    assert "by weight" not in figure_table(METRICS)[0]


def test_remarks_about_groups_and_samples() -> None:
    left = {"gauc": 0.5, "gauc_groups": 30.0, "gauc_left_out_groups": 2.0, "gauc_left_out_rows": 9.0}
    assert remarks(left) == ["GAUC is over 30 groups; 2 groups (9 rows) have only one class and are excluded"]
    assert remarks({"rows": 0.0, "clicks": 0.0}) == []
    assert few_groups(0.5, 20) == ""
    assert few_groups(0.5, 19).startswith("GAUC is over 19 groups with clicks and non-clicks; below 20 groups")


# ---- progress


def test_a_line_of_progress_tells_share_speed_stages_and_time_left() -> None:
    one = Progress(1000, 0.25, 0.5, 200.0, 5.0, 7, 0, {"extract": 0.5, "learn": 0.9}, {"extract": 1.84})
    assert str(one) == "25%: step 7, 1,000 rows, 200 rows/s, loss 0.5000, extract 50% →1.8→ learn 90%, 15 s left"
    assert repr(one) == f"Progress({one})"
    assert one.bottleneck == "learn"
    assert Progress(0, 0.0, 0.0, 0.0, 5.0, 0, 0, {}).seconds_left is None
    assert Progress(0, 0.0, 0.0, 0.0, 5.0, 0, 0, {}).bottleneck == ""
    assert one._repr_html_().startswith('<progress value="0.2500" max="1"></progress> 25%: step 7')


def test_stages_are_shown_as_they_were_in_the_last_two_to_four_seconds() -> None:
    clock = Clock("learn")
    lately = Lately([clock], 100.0)
    clock.busy, clock.given, clock.depths = 1.0, 2, 3
    assert lately.look(102.0) == ({"learn": 0.5}, {"learn": 1.5})  # not more than two seconds: still from the beginning
    clock.busy = 2.0
    shares, _ = lately.look(104.0)  # the beginning stays the older mark, this moment is the newer one
    assert shares == {"learn": 0.5}
    clock.busy = 5.0
    shares, queues = lately.look(107.0)
    assert shares == {"learn": 1.0}  # three busy seconds since 104
    assert queues == {}


def test_a_clock_counts_what_it_did_since_an_earlier_copy() -> None:
    clock = Clock("x", 5.0, 2.0, 3.0, 10, 4, 8, 3)
    assert clock.since(Clock("x", 1.0, 0.5, 1.0, 4, 2, 2, 2)) == Clock("x", 4.0, 1.5, 2.0, 6, 2, 6, 3)
    assert (clock.waited, clock.depth, Clock("y").depth) == (5.0, 2.0, None)
