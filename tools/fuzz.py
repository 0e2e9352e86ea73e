"""Run fuzz targets, ``--jobs`` at a time: ``python tools/fuzz.py BUILD --runs 1000000 [--jobs 2] [--only text,json]``.

BUILD has the programs (cmake -DCTRBOX_FUZZ=ON); seeds come from tools/fuzz_seeds.py. A finding is left in BUILD/findings,
its report is printed, and the exit status is 1. What a run learned stays in BUILD/corpus for the next, what libFuzzer told
in BUILD/logs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

REACHED = re.compile(r"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)
SECONDS = 20  # of one run
LONGEST = {
    "vw_libffm_lines": 256,
    "json": 1024,
    "request_rows": 512,
    "frame": 512,
    "batch": 512,
    "patch": 1024,
    "c_api_calls": 1024,
}
LONGEST |= {"checkpoint": 20480, "checkpoint_forged": 20480, "strings": 512, "numbers": 256, "lists": 512}
# What is freed stays poisoned for longer than a run lasts, not for 256 MB: the processor's caches hold it.
ENVIRONMENT = {"ASAN_OPTIONS": "quarantine_size_mb=16:malloc_context_size=8", **os.environ}
SLOWEST = [
    "checkpoint_forged",
    "patch_file_forged",
    "checkpoint",
    "vw_libffm_lines",
    "patch",
    "patch_file",
    "frame",
]  # go first


def command(build: Path, name: str, *more: str) -> list[str]:
    return [
        str(build / f"fuzz_{name}"), f"-max_len={LONGEST.get(name, 16384)}", "-rss_limit_mb=2048", "-malloc_limit_mb=128",
        f"-timeout={SECONDS}", f"-report_slow_units={SECONDS}", f"-artifact_prefix={build}/findings/{name}-", *more,
    ]  # fmt: skip


def ends_alone(build: Path, name: str, text: str) -> bool:
    """Whether what libFuzzer stopped as too slow ends in time when it is run again: then the machine was too slow, or the
    process was stopped for a while. The input is no finding."""
    kept = re.search(r"Test unit written to (\S*timeout-\w+)", text)
    if "libFuzzer: timeout" not in text or not kept:
        return False
    again = command(build, name, "-detect_leaks=0", kept[1])
    if any(subprocess.run(again, capture_output=True, env=ENVIRONMENT).returncode for _ in range(2)):
        return False
    Path(kept[1]).unlink()
    return True


def run(build: Path, name: str, runs: int) -> dict[str, float | str]:
    corpus, log = build / "corpus" / name, build / "logs" / f"{name}.log"
    for folder in (corpus, build / "findings", log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    start, count = time.monotonic(), 0
    while count < runs:
        flags = (f"-runs={runs - count}", "-seed=1", "-len_control=20", "-print_final_stats=1")
        with log.open("wb") as told:
            call = command(build, name, *flags, str(corpus), str(build / "seeds" / name))
            status = subprocess.run(call, stdout=told, stderr=told, env=ENVIRONMENT).returncode
        text = log.read_text(errors="replace")
        stats = {k: int(v) for k, v in re.findall(r"stat::(\w+):\s+(\d+)", text)}
        count += stats.get("number_of_executed_units", 0)
        seconds = time.monotonic() - start
        if status and not ends_alone(build, name, text):
            print(text[-3000:])
            return {"target": name, "finding": 1, "runs": count, "seconds": round(seconds, 1)}
    reached = REACHED.findall(text)[-1]
    facts: dict[str, float | str] = {"target": name, "finding": 0, "runs": count, "seconds": round(seconds, 1)}
    facts |= {"runs_per_s": round(count / seconds), "edges": int(reached[0]), "features": int(reached[1])}
    return facts | {"corpus": int(reached[2]), "peak_mb": stats["peak_rss_mb"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda given: Path(given).resolve())
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    names = sorted(p.name.removeprefix("fuzz_") for p in given.build.glob("fuzz_*") if p.is_file())
    if given.only:
        names = [name for name in given.only.split(",") if name in names]
    if not names:
        print(f"no target in {given.build}; build with -DCTRBOX_FUZZ=ON", file=sys.stderr)
        return 2
    names.sort(key=lambda name: SLOWEST.index(name) if name in SLOWEST else len(SLOWEST))
    findings = 0
    print(f"{'target':24}{'runs':>10}{'s':>8}{'runs/s':>9}{'edges':>8}{'corpus':>8}{'MB':>7}", flush=True)
    results = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for done in as_completed([pool.submit(run, given.build, name, given.runs) for name in names]):
            facts = done.result()
            results.append(facts)
            findings += bool(facts["finding"])
            shown = [facts.get(k, "-") for k in ("runs", "seconds", "runs_per_s", "edges", "corpus", "peak_mb")]
            row = "".join(f"{value:>{width}}" for value, width in zip(shown, (10, 8, 9, 8, 8, 7), strict=True))
            print(f"{facts['target']:24}{row}{'   FINDING' if facts['finding'] else ''}", flush=True)
    print(json.dumps({"targets": results, "findings": findings}))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
