"""The bottleneck of a pipeline is the stage that the others wait for, in the report and on the terminal alike."""

from __future__ import annotations

import pytest

from ctrbox.report.bottleneck import StageShares, bottleneck, least_waiting


def stages(**shares: tuple[float, float]) -> list[StageShares]:
    return [StageShares(name, busy, waited) for name, (busy, waited) in shares.items()]


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (stages(), ""),
        (stages(extract=(0.7, 0.3), learn=(0.65, 0.05)), "learn"),  # extract works more, but waits for room
        (stages(extract=(0.95, 0.0), lookup=(0.2, 0.8), learn=(0.6, 0.4)), "extract"),
        (stages(extract=(0.7, 0.02), learn=(0.9, 0.03)), "learn"),  # they wait alike: the busier one
        (stages(extract=(0.7, 0.0), learn=(0.9, 0.02)), "learn"),  # alike up to a fiftieth of the time
        (stages(extract=(0.7, 0.0), learn=(0.9, 0.021)), "extract"),
        (stages(extract=(0.5, 0.5), learn=(0.59, 0.4)), ""),  # nobody works most of the time
        (stages(extract=(0.5, 0.5), learn=(0.6, 0.4)), "learn"),
    ],
)
def test_the_bottleneck_is_the_stage_that_waits_least(found: list[StageShares], name: str) -> None:
    assert bottleneck(found) == name


def test_without_a_clear_bottleneck_the_stage_that_waits_least_is_still_known() -> None:
    found = least_waiting(stages(extract=(0.5, 0.5), learn=(0.3, 0.2)))
    assert found is not None
    assert found.name == "learn"
    assert least_waiting([]) is None
