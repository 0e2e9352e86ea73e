"""Raw columns in, scores out: the examples in C, Rust and Java against the server, bit by bit."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.serve.served_models import Live, ServedFfm
from tests.capi.library import ROOT, run
from tests.capi.models import BAD_ARGUMENT, CANNOT_READ, DAMAGED, OK

CONTEXT = ("user", "query")


class World:
    """A small plan with a join and a filter, a model that learned from it, and requests with the server's scores."""

    def __init__(self, place: Path) -> None:
        draw = random.Random(1)
        words = ["red", "blue", "hat", "shoe", "ü"]
        ads = pa.table({"ad": [1, 2, 3], "title": ["red shoe", "blue hat", ""], "bid": [0.5, None, 2.0]})
        rows = [
            {
                "id": n,
                "user": draw.randrange(5),
                "query": " ".join(draw.choices(words, k=draw.randrange(3))),
                "ad": draw.randrange(5),
                "price": draw.choice([0.1, 1.0, 2.5, -7.0]),
                "clicked": draw.randrange(2),
            }
            for n in range(400)
        ]
        log = cb.View(pa.Table.from_pylist(rows), key="id", name="log").filter(col("price") > -1.0)
        log = log.join(cb.View(ads, key="ad", name="ads").fill(title="none", bid=0.0), on="ad")
        asked, title = col("query").split(" "), col("title").split(" ")
        features = cb.FeatureSet(
            label=col("clicked"),
            sparse={"user": col("user").key(), "ad": col("ad").key(), "both": cb.cross(asked, title)},
            dense={"price": col("price"), "bid": col("bid").log1p(), "overlap": cb.overlap(asked, title)},
        )
        self.plan = cb.compile(log, features, device="cpu", threads=1)
        self.engine = cb.DeepFFM(self.plan.schema, context=self.plan.features_of(CONTEXT), k=2, hidden=(4,), bits=10)
        self.engine.learn(self.plan)
        self.request_plan, self.weights, self.lines = (
            place / n for n in ("request.ctr", "model.fbw", "requests.jsonl")
        )
        cb.serve.save_request_plan(self.plan, self.request_plan, context=CONTEXT)
        cb.publish.pack(self.engine, self.weights)
        served = ServedFfm(
            self.plan,
            CONTEXT,
            Live(cb.DeepFFM.load(self.weights, learns=False), 1),
            cache_bytes=0,
            most_candidates=1000,
        )
        self.bodies: list[bytes] = []
        self.expected: list[np.ndarray] = []
        for at in range(0, 400, 20):
            body: dict[str, Any] = {"context": {n: rows[at][n] for n in CONTEXT}}
            body["candidates"] = [{n: row[n] for n in ("ad", "price")} for row in rows[at : at + 20]]
            self.bodies.append(json.dumps(body, ensure_ascii=bool(at % 40)).encode())
            self.expected.append(served.score(served.reader.from_json(self.bodies[-1]))[0])
        self.lines.write_bytes(b"\n".join(self.bodies) + b"\n")

    def check(self, printed: str) -> None:
        """Compare printed scores with those of the server."""
        met = [np.array([float(x) for x in line.split()], np.float32) for line in printed.splitlines()]
        assert [m.tobytes() for m in met] == [e.tobytes() for e in self.expected]
        assert any(np.isnan(m).any() for m in met)  # the filter dropped some


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("scorer"))


def made(prefix: Path, place: Path, language: str, *targets: str) -> Path:
    """Build an example by its Makefile in a copy of its folder."""
    for name in ("make", "pkg-config"):
        if not shutil.which(name):
            pytest.skip(f"the examples are built with {name}, which is not installed")
    shutil.copytree(ROOT / "examples" / language, place)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig"), "CFLAGS": "-O1 -Werror"}
    run("make", "-C", str(place), *targets, env={**environment, "LDFLAGS": f"-Wl,-rpath,{prefix / 'lib'}"})
    return place


def refused(command: list[str], given: str, said: str) -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_example_in_c_has_the_bits_of_the_server(prefix: Path, world: World, tmp_path: Path) -> None:
    request = str(made(prefix, tmp_path / "c", "c", "request") / "request")
    world.check(run(request, str(world.request_plan), str(world.weights), input=world.lines.read_text()))
    refused(
        [request, str(world.request_plan), str(world.weights)], '{"candidates": [{"ad": "1"}]}\n', "column 'ad' must be"
    )
    told = subprocess.run(
        [request, str(world.request_plan), str(world.weights)], input="", capture_output=True, text=True
    )
    assert told.stderr.split("\n")[:2] == ["context   i user", "context   s query"]


def test_the_example_in_rust_has_the_bits_of_the_server(prefix: Path, world: World, tmp_path: Path) -> None:
    if not shutil.which("rustc"):
        pytest.skip("the example in Rust needs rustc, which is not installed")
    request = str(made(prefix, tmp_path / "rust", "rust") / "request")
    world.check(run(request, str(world.request_plan), str(world.weights), input=world.lines.read_text()))
    refused([request, str(world.request_plan), str(world.weights)], "[]\n", "expected an object with context")
    refused([request, str(world.weights), str(world.weights)], "", "it is not a request plan")


def test_the_example_in_java_has_the_bits_of_the_server(prefix: Path, world: World, tmp_path: Path) -> None:
    if not shutil.which("javac") or not shutil.which("java"):
        pytest.skip("the example in Java needs a JDK, which is not installed")
    place = str(made(prefix, tmp_path / "java", "java"))
    java = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", f"-Djava.library.path={place}", "-cp", place, "Scorer"]
    world.check(run(*java, str(world.request_plan), str(world.weights), input=world.lines.read_text()))
    refused(
        [*java, str(world.request_plan), str(world.weights)], "{}\n", 'expected "context" or "candidates" at byte 1'
    )


def test_calls_by_ctypes_have_the_bits_and_refuse(lib: ctypes.CDLL, world: World, tmp_path: Path) -> None:
    def opened(plan: Path, weights: Path) -> tuple[int, ctypes.c_void_p]:
        scorer = ctypes.c_void_p()
        return lib.ctrbox_scorer_open(str(plan).encode(), str(weights).encode(), ctypes.byref(scorer)), scorer

    status, scorer = opened(world.request_plan, world.weights)
    assert status == OK, lib.ctrbox_last_error()
    scores, rows = (ctypes.c_float * 20)(), ctypes.c_size_t()

    def scored(body: bytes, room: int = 20) -> int:
        size = ctypes.c_size_t(len(body))
        return int(lib.ctrbox_scorer_json(scorer, body, size, scores, ctypes.c_size_t(room), ctypes.byref(rows)))

    for body, expected in zip(world.bodies, world.expected, strict=True):
        assert scored(body) == OK, lib.ctrbox_last_error()
        assert np.array(scores[: rows.value], np.float32).tobytes() == expected.tobytes()
    assert scored(world.bodies[0], 19) == BAD_ARGUMENT
    assert rows.value == 20
    lib.ctrbox_scorer_close(scorer)
    assert opened(tmp_path / "none", world.weights)[0] == CANNOT_READ
    assert opened(world.weights, world.weights)[0] == DAMAGED
    other = cb.DeepFFM(["user", "elsewhere"], bits=8)
    other.save(tmp_path / "other.ffm")
    assert opened(world.request_plan, tmp_path / "other.ffm")[0] == BAD_ARGUMENT
    assert b"field 'elsewhere' is not a feature of the plan" in lib.ctrbox_last_error()
