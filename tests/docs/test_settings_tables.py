"""The tables in docs/training/settings.md and docs/training/classifier.md name what the code takes, with its defaults."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import ctrbox as cb
from ctrbox.cli.job_file import FROM_THE_COMMAND_LINE, OF_THE_JOB
from ctrbox.sklearn.frames import FEW, QUANTILES, REACH
from ctrbox.train.settings import LEAST_BATCH, MOST_BATCH, STEPS, Settings, with_batch_size

DOCS = Path(__file__).resolve().parents[2] / "docs"
SETTINGS = (DOCS / "training" / "settings.md").read_text(encoding="utf-8")
CLASSIFIER = (DOCS / "training" / "classifier.md").read_text(encoding="utf-8")


def table(page: str, head: str) -> dict[str, str]:
    """Names and defaults of the table of a page that begins with a head."""
    lines = page.split(f"\n| {head} | default | meaning |\n", 1)[1].split("\n\n", 1)[0].splitlines()[1:]
    found = [re.match(r"\| `(\w+)` \| `([^`]+)` \| \S", line) for line in lines]
    assert all(found), lines
    return {met[1]: met[2] for met in found if met is not None}


def test_the_table_of_settings_has_all_that_a_job_may_set() -> None:
    expected = {f.name: repr(f.default) for f in fields(Settings)}
    elsewhere = {"self", "plan", "unknown"} | FROM_THE_COMMAND_LINE | OF_THE_JOB
    for name, parameter in inspect.signature(cb.Trainer.fit).parameters.items():
        if name not in elsewhere:
            expected[name] = repr(parameter.default)
    assert table(SETTINGS, "setting") == expected


def test_fit_has_the_settings_with_their_defaults() -> None:
    parameters = inspect.signature(cb.Trainer.fit).parameters
    assert {f.name: f.default for f in fields(Settings)} == {
        f.name: parameters[f.name].default for f in fields(Settings)
    }


def test_the_rule_of_the_batch_size_is_the_one_that_is_written() -> None:
    assert (
        f"power of two from {LEAST_BATCH} to {MOST_BATCH:,} with which an epoch has at most {STEPS} steps" in SETTINGS
    )
    assert f"With more than {MOST_BATCH * STEPS:,} training rows, it is {MOST_BATCH:,}" in SETTINGS
    for rows, size in ((1, 64), (16_000, 64), (16_001, 128), (100_000, 512), (4_096_001, 16_384)):
        assert with_batch_size(Settings(), rows).batch_size == size


def test_the_table_of_the_classifier_has_all_its_parameters() -> None:
    parameters = inspect.signature(cb.Classifier).parameters
    assert table(CLASSIFIER, "parameter") == {name: repr(p.default) for name, p in parameters.items()}
    assert f"at most {FEW} distinct values | keys" in CLASSIFIER
    assert f"limited to ±{REACH:.0f} standard deviations" in CLASSIFIER
    assert f"divided into {QUANTILES} quantiles, and the quantile of a value becomes a key" in CLASSIFIER
