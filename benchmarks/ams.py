"""Where should the images be, and where the sub-model? The paper's Table 2, from real runs of all three strategies.

    python -m benchmarks.ams [--quick] [--steps 480] [--users 5]

One job (`ams_job`), trained by workers and servers that are processes of their own and talk over sockets. Storage is the size of
the files that workers and servers read, communication what went through the sockets between them, both by mini-batch of the whole
cluster. The answer is checked: losses and weights of all three agree, up to rounding that grows from step to step. The times are
of one machine, on which all processes share the cores and a byte costs next to nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import ctrbox as cb
from benchmarks.ams_job import DIM, Job, store
from benchmarks.report import ROOT, finish, options, table

STRATEGIES = ("ps-worker", "ps-server", "ams")
PAPER = {
    "ps-worker": ("5.1G", "0", "128M", "0"),
    "ps-server": ("134M", "30.3M", "5.1G", "5.0G"),
    "ams": ("134M", "30.3M", "158M", "30M"),
}
AT_MOST = 1 / 30


def run(job: Job, strategy: str, servers: int, folder: Path) -> dict[str, Any]:
    """Lay out the files, start every node, wait for all."""
    (folder / "samples").mkdir(parents=True)
    stored = {"worker": store(job, folder / "samples", inline=strategy == "ps-worker"), "server": 0}
    if strategy != "ps-worker":
        keys = np.arange(1, job.images + 1)
        file = cb.tables.write_vectors(
            folder / "images", {"k": keys, "v": job.vectors()}, key="k", vector="v", shards=servers
        )
        stored["server"] = file.nbytes
    config = folder / "config.json"
    config.write_text(json.dumps({"job": asdict(job), "strategy": strategy, "servers": servers, "folder": str(folder)}))
    nodes = [("server", k) for k in range(servers)] + [("worker", k) for k in range(job.workers)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = []
    try:
        for role, k in nodes:
            command = [sys.executable, "-m", "benchmarks.ams_node", str(config), role, str(k)]
            log = (folder / f"{role}-{k}.log").open("w")
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=env))
        answers = [p.communicate(timeout=1800)[0] for p in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
    for (role, k), process in zip(nodes, started, strict=True):
        if process.returncode:
            raise RuntimeError(f"{strategy}: {role} {k} failed:\n{(folder / f'{role}-{k}.log').read_text()[-3000:]}")
    told = [json.loads(a.strip().splitlines()[-1]) for a in answers]
    return {"stored": stored, "servers": told[:servers], "workers": told[servers:]}


def summary(job: Job, found: dict[str, Any]) -> dict[str, float]:
    """By mini-batch of the whole cluster."""
    ids = sum(w["moved"].get("ids", 0) for w in found["workers"]) / job.steps
    images = sum(w["moved"].get("images", 0) for w in found["workers"]) / job.steps
    # A step ends with its slowest worker; the first ones warm up.
    slowest = np.max([w["seconds"] for w in found["workers"]], axis=0)[min(5, job.steps // 4) :]
    return {
        "worker": found["stored"]["worker"] / job.steps,
        "server": found["stored"]["server"] / job.steps,
        "all": ids + images,
        "image": images,
        "ms": float(np.median(slowest)) * 1e3,
    }


def check(found: dict[str, dict[str, Any]]) -> None:
    """The same job was learned: only where it was computed differs."""
    first = found["ps-worker"]["workers"]
    for strategy, one in found.items():
        for mine, other in zip(one["workers"], first, strict=True):
            for steps, near in ((20, 1e-3), (None, 5e-2)):
                same = np.allclose(mine["losses"][:steps], other["losses"][:steps], rtol=near, atol=near)
                assert same, f"{strategy}: other losses"
            assert np.isclose(mine["top"], other["top"], rtol=1e-3), f"{strategy}: another model"
    inside = {w["submodel"] for w in found["ams"]["servers"]}
    assert len(inside) == 1, "the servers' sub-models differ"
    for strategy in ("ps-worker", "ps-server"):
        assert np.isclose(found[strategy]["workers"][0]["submodel"], inside.copy().pop(), rtol=1e-3)
    third = len(first[0]["losses"]) // 3
    learned = np.mean([w["losses"][-third:] for w in first]) < np.mean([w["losses"][:third] for w in first])
    assert learned, "nothing was learned"


def short(size: float) -> str:
    for unit, least in (("G", 2**30), ("M", 2**20), ("k", 2**10)):
        if size >= least:
            return f"{size / least:.3g} {unit}B"
    return f"{size:.0f} B"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small job")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--users", type=int, default=0, help="of a worker and step")
    asked = parser.parse_args()
    steps = asked.steps or (60 if asked.quick else 480)
    users = asked.users or (2 if asked.quick else 5)
    job = Job.of(asked.workers, steps, users, 4096)
    found: dict[str, dict[str, Any]] = {}
    for strategy in STRATEGIES:
        place = Path(tempfile.mkdtemp(prefix="ctrbox-ams-"))
        try:
            found[strategy] = run(job, strategy, asked.servers, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    check(found)
    rows = {s: summary(job, f) for s, f in found.items()}
    images = sum(w["images"] for w in found["ams"]["workers"]) / job.steps
    print(
        f"{job.workers} workers, {asked.servers} servers, {job.steps} mini-batches of {job.workers * job.rows} samples with "
        f"{images:.0f} images of {job.width} floats; {job.images:,} images in all, used {job.reuse:.0f} times each"
    )
    table(
        ["", "stored: worker", "server", "moved: all", "images", "ms a step", "the paper's"],
        [
            [s, *(short(r[k]) for k in ("worker", "server", "all", "image")), f"{r['ms']:.1f}", " ".join(PAPER[s])]
            for s, r in rows.items()
        ],
    )
    storage = {s: r["worker"] + r["server"] for s, r in rows.items()}
    less_stored = storage["ps-worker"] / storage["ams"]
    less_moved = rows["ps-server"]["all"] / rows["ams"]["all"]
    images_moved = rows["ps-server"]["image"] / rows["ams"]["image"]
    print(
        f"AMS stores 1/{less_stored:.1f} of PS-worker and moves 1/{less_moved:.1f} of PS-server (images: 1/{images_moved:.0f})"
    )
    finish(
        rows["ams"]["ms"],
        {s: rows[s]["ms"] for s in ("ps-worker", "ps-server")},
        "ms a step",
        more_is_better=False,
        dim=DIM,
        stored_ratio=round(less_stored, 2),
        moved_ratio=round(less_moved, 2),
        images_moved_ratio=round(images_moved, 1),
        within=bool(less_stored >= 1 / AT_MOST and less_moved >= 1 / AT_MOST),
        bytes={s: {k: round(v) for k, v in r.items() if k != "ms"} for s, r in rows.items()},
    )


if __name__ == "__main__":
    main()
