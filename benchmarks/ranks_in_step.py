"""Runs `ctrbox` as several ranks that exchange the keys of a batch within its step, for the comparison in `benchmarks.ranks`.

    python -m benchmarks.ranks_in_step RANKS train JOB.PY …

It differs from `ctrbox train JOB.PY --ranks RANKS` in nothing else.
"""

from __future__ import annotations

import functools
import sys

from ctrbox.cli.main import main as ctrbox
from ctrbox.ranks import ranks
from ctrbox.ranks.start_and_watch_ranks import launch
from ctrbox.ranks.torchrun_environment import World


def main() -> None:
    """Start the ranks, or be one of them."""
    if World.here() is None:
        command = [sys.executable, "-m", "benchmarks.ranks_in_step", *sys.argv[1:]]
        sys.exit(launch(int(sys.argv[1]), command, functools.partial(print, file=sys.stderr)))
    ranks.Ranks = functools.partial(ranks.Ranks, asks_ahead=False)  # type: ignore[misc, assignment]
    del sys.argv[1]
    ctrbox()


if __name__ == "__main__":
    main()
