"""How fast does `ctrbox serve` answer if only a tenth of a Sparse Table fits into its memory?

    python -m benchmarks.serve_sparse [--rows 3000000] [--seconds 15] [--share 0.1] [--quick]

A DeepFM with one Sparse Table (dim 16, first-order weights) is trained on a log of --rows rows with half as many users and an
eighth as many ads. One process serves its run folder on loopback, with 100 candidates in each request, in two ways that run in
turns:
    a part      --table-memory is a tenth (--share) of the bytes that the table takes on disk
    all         the default, 2 GB, which holds all rows
Users and ads of the requests are drawn in two ways: evenly, so that most rows must be read from disk, and by Zipf's law with
exponent 1.1, as in logs.

Every answer of one pass over the requests is compared: both servers must give the same bits. Requests per second are those of 8
connections that ask again as soon as they are answered; p50 and p99 are those at half of that rate, from an open-loop client. The
client shares the cores of the machine with the server. Rows are read with the operating system's cache in between where the
file system does not allow direct reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa

import ctrbox as cb
from benchmarks import report
from benchmarks.serve import free_port, process
from ctrbox import col

DIM, CANDIDATES, BODIES, TURNS = 16, 100, 1000, 3


def trained(folder: Path, rows: int) -> Path:
    """Train the model and return its run folder."""
    rng = np.random.default_rng(0)
    log = {
        "id": np.arange(rows),
        "user": rng.integers(0, rows // 2, rows),
        "ad": rng.integers(0, rows // 8, rows),
        "clicked": (rng.random(rows) < 0.2).astype(np.int64),
    }
    sparse = {"user": col("user").key(), "ad": col("ad").key()}
    plan = cb.compile(cb.View(pa.table(log), key="id", name="log"), cb.FeatureSet(label=col("clicked"), sparse=sparse))
    table = cb.SparseTable(folder / "table", dim=DIM)
    model = cb.models.DeepFM(plan.schema, dim=DIM, hidden=(32,))
    cb.Trainer(model, table).fit(plan, batch_size=16_384, epochs=1, out=folder / "run")
    table.close()
    return folder / "run"


def bodies_of(kind: str, rows: int) -> list[bytes]:
    rng = np.random.default_rng(1)

    def drawn(most: int, size: tuple[int, ...]) -> np.ndarray:
        if kind == "even":
            return rng.integers(0, most, size)
        return (rng.zipf(1.1, size) * 2_654_435_761) % most  # the frequent ones are anywhere among all keys

    users, ads = drawn(rows // 2, (BODIES,)).tolist(), drawn(rows // 8, (BODIES, CANDIDATES)).tolist()
    return [
        orjson.dumps({"context": {"user": user}, "candidates": [{"ad": ad} for ad in mine]})
        for user, mine in zip(users, ads, strict=True)
    ]


def load(port: int, file: Path, rate: float, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.serve_load", str(port), str(file), str(rate), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=report.ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == 0, found
    assert set(found["answers"]) == {"200"}, found
    return found["answers"]["200"]  # type: ignore[no-any-return]


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="rows of the log; default 3,000,000")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement; default 15")
    parser.add_argument("--share", type=float, default=0.1, help="share of the table in memory; default 0.1")
    parser.add_argument("--quick", action="store_true", help="200,000 rows and measurements of 2 seconds")
    given = parser.parse_args()
    if given.quick:
        given.rows, given.seconds = 200_000, 2.0
    with TemporaryDirectory(prefix="ctrbox-serve-sparse-") as name:
        place = Path(name)
        run = trained(place, given.rows)
        size = sum(file.stat().st_size for file in run.glob("model/table-*/**/*") if file.is_file())
        memory = int(size * given.share)
        ways = {"a part": ["--table-memory", f"{memory}B"], "all": []}
        found: dict[str, dict[str, dict[str, float]]] = {}
        for kind in ("even", "Zipf"):
            bodies = bodies_of(kind, given.rows)
            (file := place / f"{kind}.jsonl").write_bytes(b"\n".join(bodies))
            measured: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for turn in range(TURNS):
                answers: dict[str, list[bytes]] = {}
                for way, options in ways.items():
                    port = free_port()
                    command = [sys.executable, "-m", "ctrbox", "serve", str(run), "--port", str(port), *options]
                    with process(command, port):
                        if not turn:
                            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                                answers[way] = [client.post("/v1/score", content=one).content for one in bodies]
                            assert all(b'"scores"' in one for one in answers[way]), answers[way][0]
                        load(port, file, 0, given.seconds / 3)
                        rate = load(port, file, 0, given.seconds)["count"] / given.seconds
                        half = load(port, file, rate / 2, given.seconds)
                        measured[way].append({"rate": rate, "p50": half["p50_ms"], "p99": half["p99_ms"]})
                if not turn:
                    assert answers["a part"] == answers["all"], "scores depend on how many rows are in memory"
            found[kind] = {
                way: {what: float(np.median([one[what] for one in several])) for what in several[0]}
                for way, several in measured.items()
            }
    print(f"{given.rows:,} rows; the table takes {size / 2**20:,.0f} MB on disk and {memory / 2**20:,.1f} MB in memory")
    report.table(
        ["keys", "rows in memory", "requests/s", "p50 ms at half load", "p99 ms"],
        [
            [kind, way, f"{one['rate']:,.0f}", f"{one['p50']:.1f}", f"{one['p99']:.1f}"]
            for kind, each in found.items()
            for way, one in each.items()
        ],
    )
    even = found["even"]
    report.finish(
        even["a part"]["rate"],
        {"all rows in memory": even["all"]["rate"]},
        f"requests/s of {CANDIDATES} candidates, keys drawn evenly",
        table_bytes=size,
        memory_bytes=memory,
        all=found,
    )


if __name__ == "__main__":
    main()
