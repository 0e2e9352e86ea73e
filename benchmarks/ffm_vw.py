"""Vowpal Wabbit on the lines of benchmarks.ffm, which calls `main` in an interpreter that has its package.

Arguments: train.vw test.vw predictions.txt [arguments of vw]. The last line is the seconds taken, as JSON: learning from text and
from vw's cache, predicting from the cache with the model loaded, and predicting with loading, parsing and writing a file.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def run(arguments: str, after_loading: bool = False) -> float:
    """Run vw over its data; the seconds it took, without those of loading a model where ``after_loading`` says so."""
    import vowpalwabbit

    begin = time.perf_counter()
    workspace = vowpalwabbit.Workspace(arguments, enable_logging=False)
    if after_loading:
        begin = time.perf_counter()
    workspace.run_parser()
    seconds = time.perf_counter() - begin
    workspace.finish()
    return seconds if after_loading else time.perf_counter() - begin


def main() -> None:
    train, test, out, *arguments = sys.argv[1:]
    model = f"{out}.model"
    cache, test_cache = f"{train}.cache", f"{test}.cache"
    learner = f"--quiet --loss_function logistic -b 24 --no_stdin -f {model} {' '.join(arguments)}"
    for text, parsed in ((train, cache), (test, test_cache)):
        if not Path(parsed).exists():
            run(f"--quiet --no_stdin -d {text} -b 24 --noconstant --cache_file {parsed} --passes 1")
    seconds = {
        "text": run(f"-d {train} {learner}"),
        "cache": run(f"--cache_file {cache} {learner}"),
    }
    # Predictions for the AUC, as a user would write them; then the time of predicting alone, from the parsed cache.
    seconds["predict_whole"] = run(f"--quiet -t -d {test} -i {model} --link logistic -p {out}")
    seconds["predict"] = run(f"--quiet -t --cache_file {test_cache} -i {model} --link logistic --no_stdin", True)
    print(json.dumps(seconds))
