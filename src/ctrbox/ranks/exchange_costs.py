"""Reports what the exchanges of a training step cost a rank: bytes sent, the fewest bytes possible, seconds of waiting."""

from __future__ import annotations

from typing import Any

from ctrbox.ranks.group import Group

OF_A_STEP = (
    "keys",
    "rows",
    "gradients",
    "dense",
    "sums",
    "normalization",
)  # kinds of exchanges, in their order in a step


def step_costs(group: Group, ahead: Group, waited_for_keys: float, least: int, steps: int) -> dict[str, Any]:
    """Return the costs of one step on average, for ``summary.json``; evaluation and messages about the run are left out.

    ``least``: bytes that this rank would have given to others in these steps if every exchange were as short as it can be (see
    docs/how_it_works/ranks.md).
    ``waited_for_keys``: seconds that the learning thread waited in these steps for keys to be exchanged.
    """
    steps = max(1, steps)
    sent = {kind: group.costs[kind].moved + ahead.costs[kind].moved for kind in OF_A_STEP}
    sent["log"] = ahead.costs["log"].moved
    waited = {kind: group.costs[kind].seconds for kind in OF_A_STEP} | {"keys": waited_for_keys}
    return {
        "bytes_sent_per_step": sum(sent.values()) // steps,
        "least_bytes_per_step": least // steps,
        "sent_per_step": {kind: size // steps for kind, size in sent.items() if size},
        "waited_per_step": {kind: seconds / steps for kind, seconds in waited.items() if seconds},
    }
