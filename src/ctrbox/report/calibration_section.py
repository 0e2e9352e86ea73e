"""Writes the report's section on the calibration map of a run: the validation rows before and after it."""

from __future__ import annotations

from ctrbox.report.number_format import fixed
from ctrbox.report.quality_sections import dots_of
from ctrbox.report.read_recorded_files import Fields
from ctrbox.show import charts
from ctrbox.show.charts import text
from ctrbox.show.page import named, section, table

KINDS = {"platt": "Platt scaling", "isotonic": "Isotonic regression"}


def calibrator(s: Fields) -> str:
    """Show the reliability curves and the expected calibration error before and after the map, if the run has one.

    A run with several labels has a map for each binary label.
    """
    found = s.fields("calibrator")
    if not found.values:
        return ""
    labels = found.fields("labels")
    words = f"{KINDS.get(found.text('kind') or '', 'A calibration map')} was fitted"
    if labels.values:
        words += " for each binary label, to the rows in which it was observed and"
    else:
        rows, clicks = found.count("rows"), found.count("clicks")
        if rows is not None and clicks is not None:
            words += f" to {rows:,} rows ({clicks:,} of them clicks)"
    words += " that were held back from training and are not among the validation rows."
    by, slices = found.text("by"), found.count("slices")
    if by and slices is not None:
        maps = f"{slices:,} of its values has a map" if slices == 1 else f"{slices:,} of its values have maps"
        words += f" It is fitted by {by}: {maps} of {'its' if slices == 1 else 'their'} own, other rows share one."
    elif by:
        words += f" It is fitted by {by}: values with enough rows have maps of their own, other rows share one."
    sides = [found, *(labels.fields(name) for name in labels.values)]
    if not any(side.fields("before").values or side.fields("after").values for side in sides):
        return section(
            "calibrator", "Before and after the calibration", text(words, 900), "<p>There were no validation rows.</p>"
        )
    words += (
        " The expected calibration error is the distance between predicted and actual click rate, averaged over the rows in "
        "groups of similar predictions; chance alone makes it larger than 0."
    )
    if not labels.values:
        body = _curves(found)
    else:
        body = "".join(
            f"<h3>{named(f'Label {name}')}: {_fitted(labels.fields(name))}</h3>{_curves(labels.fields(name))}"
            for name in labels.values
        )
    return section("calibrator", "Before and after the calibration", text(words, 1200), body)


def _fitted(label: Fields) -> str:
    rows, ones = label.count("rows"), label.count("clicks")
    return "" if rows is None or ones is None else f"{rows:,} calibration rows, {ones:,} of them 1"


def _curves(found: Fields) -> str:
    sides = [("before", found.fields("before")), ("after", found.fields("after"))]
    heads = [("validation rows", "name"), ("expected calibration error", "n"), ("95 % interval", "n")]
    lines = [
        [
            named(name),
            fixed(side.number("ece"), 5),
            f"{fixed(side.number('ece_low'), 5)} to {fixed(side.number('ece_high'), 5)}",
        ]
        for name, side in sides
    ]
    curves = "".join(
        f"<div><h3>{name.capitalize()}</h3>{charts.calibration_chart(dots_of(side.each('bins'), 'mean_p', 'click_rate'))}</div>"
        for name, side in sides
    )
    return f'<div class="two">{curves}</div>{table(heads, lines)}'
