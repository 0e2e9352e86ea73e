"""Warns if a run scores other data whose histories begin empty, although the histories of the training rows did not.

Histories and windowed counters are computed from the data itself, unless the data contain their columns. The first rows of
tomorrow's log then look like users and ads that nobody has ever seen, and the model scores them accordingly. There is no warning
for features whose events come from another view, because that view is read from its first row, nor for histories that begin with
a saved state.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.history.history_columns_of_log import computed_from_log
from ctrbox.train.seen_in_training import log_fingerprint

SHOWN = 5  # names of columns


def warn_of_empty_histories(trained_on: Callable[[], str], plan: Plan) -> None:
    """Warn if the histories of a plan's log begin empty.

    ``trained_on`` returns the fingerprint of the log that the run was trained on. That log needs no warning, because its
    histories begin as they did in training.
    """
    names = computed_from_log(plan.log)
    if not names or log_fingerprint(plan) in {trained_on()} - {""}:
        return
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    warnings.warn(
        f"the columns of with_history ({shown}) are computed from {plan.log.source.name} alone and begin empty at its first row, "
        "so early rows look like users and ads without a past. Let them begin with the state of the earlier log: histories=FILE "
        "or --state FILE, saved by plan.histories().save(FILE). Or use rows that have these columns (docs/features/histories.md)",
        stacklevel=3,
    )
