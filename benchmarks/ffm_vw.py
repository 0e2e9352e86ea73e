"""Vowpal Wabbit on the lines of benchmarks.ffm, which calls `main` in an interpreter that has its package.

Arguments: train.vw test.vw predictions.txt [arguments of vw]. The last line is the seconds taken, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def run(arguments: str) -> float:
    import vowpalwabbit

    begin = time.perf_counter()
    workspace = vowpalwabbit.Workspace(arguments, enable_logging=False)
    workspace.run_parser()
    workspace.finish()
    return time.perf_counter() - begin


def main() -> None:
    train, test, out, *arguments = sys.argv[1:]
    model = f"{out}.model"
    cache = f"{train}.cache"
    learner = f"--quiet --loss_function logistic -b 24 --no_stdin -f {model} {' '.join(arguments)}"
    if not Path(cache).exists():
        run(f"--quiet --no_stdin -d {train} -b 24 --noconstant --cache_file {cache} --passes 1")
    seconds = {
        "text": run(f"-d {train} {learner}"),
        "cache": run(f"--cache_file {cache} {learner}"),
        "predict": run(f"--quiet -t -d {test} -i {model} --link logistic -p {out}"),
    }
    print(json.dumps(seconds))
