"""Do Python, HTTP, gRPC and C give a row the same score, bit by bit?

python -m benchmarks.same_bits [--quick] [--rows N] [--prefix FOLDER]

A Deep FFM (k = 4, hidden 24-24) over the demo's plan learns from the synthetic ad log and is published with 16-bit codes.
Requests of 100 candidates, 100,000 rows in all, are scored

    Python      by the plan and the model over all rows at once: engine.predict(plan.run(rows))
    HTTP        by `ctrbox serve`, as JSON to POST /v1/score
    HTTP v2     by the same server, as binary tensors of the Open Inference Protocol
    gRPC        by the same server, as tensors
    C           by examples/c/request with libctrbox and the plan that `ctrbox publish request-plan` writes, without Python

and the float32 of every row are compared. Any difference ends the run with an error. Seconds are those of one client that waits
for each answer, so they say what a request costs and not what a server can bear (benchmarks.serve does). libctrbox is built into
build/capi, or taken from a folder where it is installed (--prefix build/capi/prefix after `make capi`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa

from benchmarks import report
from benchmarks.serve import CANDIDATES, free_port, inputs_of, make, process, requests_of, tensors_of
from ctrbox.serve import ModelFolder, save_request_plan

WHOLE, QUICK = (200_000, 22, 100_000), (20_000, 18, 5_000)  # rows of the log, bits of the model, rows to score

Scores = dict[str, np.ndarray]  # float32, by way
Made = list[tuple[dict[str, Any], pa.Table]]


def installed(place: Path) -> Path:
    """Build libctrbox, optimized, and install it; return the folder with lib/ and include/."""
    build = report.ROOT / "build" / "capi"
    beside = Path(sys.executable).parent
    tool = {name: str(beside / name) if (beside / name).exists() else name for name in ("cmake", "ninja")}
    configure = [
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tool['ninja']}",
        "-DCTRBOX_CAPI=ON",
        "-DCMAKE_INSTALL_LIBDIR=lib",
    ]
    for command in (
        [tool["cmake"], "-S", str(report.ROOT), "-B", str(build), *configure, f"-DCMAKE_INSTALL_PREFIX={place}"],
        [tool["cmake"], "--build", str(build)],
        [tool["cmake"], "--install", str(build)],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return place


def program(prefix: Path, place: Path) -> Path:
    """Compile examples/c/request.c against an installed libctrbox."""
    flags = [f"-I{prefix}/include", f"-L{prefix}/lib", "-lctrbox", f"-Wl,-rpath,{prefix}/lib"]
    source = report.ROOT / "examples" / "c" / "request.c"
    subprocess.run(["cc", "-std=c99", "-O2", "-o", str(place / "request"), str(source), *flags], check=True)
    return place / "request"


def of_c(request: Path, plan: Path, weights: Path, made: Made) -> np.ndarray:
    lines = b"".join(orjson.dumps(body) + b"\n" for body, _ in made)
    done = subprocess.run([str(request), str(plan), str(weights)], input=lines, capture_output=True, check=True)
    return np.array([float(word) for word in done.stdout.split()], np.float32)


def of_http(port: int, made: Made) -> np.ndarray:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        answers = [client.post("/v1/score", content=orjson.dumps(body)).raise_for_status().json() for body, _ in made]
    return np.array([score for answer in answers for score in answer["scores"]], np.float32)


def of_tensors(library: Any, port: int, made: Made) -> np.ndarray:
    with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answers = [client.infer("model", inputs_of(library, tensors_of(body))) for body, _ in made]
        return np.concatenate([answer.as_numpy("score") for answer in answers])


def scored(place: Path, plan: Any, model: ModelFolder, made: Made, prefix: Path) -> tuple[Scores, dict[str, float]]:
    """Return the scores of each way, and the seconds that each took."""
    import tritonclient.grpc as over_grpc
    import tritonclient.http as over_http

    found: Scores = {}
    seconds: dict[str, float] = {}

    def timed(way: str, score: Callable[[], np.ndarray]) -> None:
        began = time.perf_counter()
        found[way] = score()
        seconds[way] = time.perf_counter() - began

    rows, engine = pa.concat_tables([rows for _, rows in made]), model.engine(1)
    timed("Python", lambda: engine.predict(plan.run(rows)))
    port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "ctrbox", "serve", str(model.folder), "--port", str(port), "--workers", "1"]
    with process([*command, "--grpc-port", str(grpc_port)], port):
        timed("HTTP", lambda: of_http(port, made))
        timed("HTTP v2", lambda: of_tensors(over_http, port, made))
        timed("gRPC", lambda: of_tensors(over_grpc, grpc_port, made))
    request, written = program(prefix, place), place / "request.ctr"
    save_request_plan(plan, written, context=model.context)
    timed("C", lambda: of_c(request, written, model.published.file(1), made))
    return found, seconds


def differing(scores: Scores) -> dict[str, int]:
    """Count, for each way, the rows whose bits are not those of Python."""
    exact = scores["Python"].view(np.uint32)
    for way, found in scores.items():
        if found.dtype != np.float32 or len(found) != len(exact):
            raise RuntimeError(f"{way} gave {len(found):,} scores of {found.dtype}; expected {len(exact):,} of float32")
    return {way: int((found.view(np.uint32) != exact).sum()) for way, found in scores.items()}


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small log and 5,000 rows")
    parser.add_argument("--rows", type=int, help="rows to score; default: 100,000, or 5,000 with --quick")
    parser.add_argument(
        "--prefix", type=Path, help="folder of an installed libctrbox; default: build it into build/capi"
    )
    asked = parser.parse_args()
    log_rows, bits, rows = QUICK if asked.quick else WHOLE
    rows = asked.rows or rows
    with TemporaryDirectory(prefix="ctrbox-same-bits-") as name:
        place = Path(name)
        prefix = asked.prefix.resolve() if asked.prefix else installed(place / "prefix")
        plan, _, model = make(place, log_rows, bits)
        made = requests_of(place, -(-rows // CANDIDATES), seed=0)
        scores, seconds = scored(place, plan, model, made, prefix)
        lines = [[way, f"{len(scores[way]):,}", n, f"{seconds[way]:.2f}"] for way, n in differing(scores).items()]
        report.table(["way", "rows", "rows with other bits", "seconds"], lines)
        different = sum(differing(scores).values())
        print(f"{len(np.unique(scores['Python'])):,} different scores among {len(scores['Python']):,} rows")
        report.finish(
            float(different),
            {},
            "rows whose score has other bits than Python's",
            rows=len(scores["Python"]),
            seconds=seconds,
        )
    if different:
        sys.exit("scores differ")


if __name__ == "__main__":
    os.environ.setdefault("CTRBOX_ALLOW_VIEWS", "/")
    main()
