"""Rounds of kill -9 of the online loop.

    Rounds(place, seed, FolderSource).go(kills=100)
    Rounds(place, seed, BrokerSource).go(kills=20)      # a real nats-server, which is killed now and then as well
    Rounds(place, seed, kind="deepfm").go(kills=20)     # a click model of torch instead of a Deep FFM; "ssd": with a Sparse Table

A producer hands chunks over to the stream, one at a time, while a loop learns from it in a process of its own; that is killed at
a random moment and another goes on. After every kill the folder is looked at: its last checkpoint is whole, its versions verify,
each learned from more examples than the one before, and none from more than the checkpoint. When the producer is done and nothing
is left, the loop must have learned what an unbroken one learned: weights and optimizer states bit by bit, the same counts of
events, the same events that wait, the same versions.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import ctrbox as cb
from ctrbox.datasets import adlog, adlog_events
from ctrbox.embed.shards import loaded
from ctrbox.errors import CtrboxError
from ctrbox.loop.checkpoint import Checkpoint, Checkpoints
from ctrbox.loop.join import CHUNK
from ctrbox.loop.online_model import OnlineFfm
from ctrbox.predict.weights_folder import read_state
from ctrbox.publish.weight_file import read_directory
from ctrbox.serve.model_folder import ModelFolder
from tests.kill_rounds import KillRounds
from tests.loop.online_world import engine_of, loop

ROOT = Path(__file__).parents[2]
WORDS = ("warm", "piece", "checkpoint", "kept", "publish", "published", "idle", "ready")


IDLE = 4  # times in a row that nothing came: it is time for a kill


class Broken(AssertionError):
    """A loop that is not what was promised; the message names the folder, which is left as it is."""


class Source(Protocol):
    """Where a producer puts chunks: what was handed over was acknowledged."""

    where: str

    def hand_over(self, chunk: Path) -> None: ...
    def disturb(self, rng: random.Random) -> None: ...
    def close(self) -> None: ...


class FolderSource:
    """Files renamed into a folder."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.place, self.where = place, str(place)

    def hand_over(self, chunk: Path) -> None:
        aside = self.place / f".{chunk.name}"
        shutil.copyfile(chunk, aside)
        aside.rename(self.place / chunk.name)

    def disturb(self, rng: random.Random) -> None:
        pass

    def close(self) -> None:
        pass


class Rounds(KillRounds):
    def __init__(
        self,
        place: Path,
        seed: int,
        source: Any = FolderSource,
        *,
        rows: int = 3_000,
        chunk_rows: int = 60,
        pace: float = 0.15,
        kind: str = "ffm",
    ) -> None:
        super().__init__(place, seed)
        self.kind = kind  # of the model
        self.usual_pace = pace  # seconds between two chunks, on average
        self.source, self.events = source, 0
        self.data, self.chunks = place / "data", place / "chunks"
        adlog(rows=rows, seed=seed, out=self.data, days=1)
        # Some clicks come too late, some too far behind their impression.
        self.total = adlog_events(
            self.data,
            self.chunks,
            chunk_rows=chunk_rows,
            format="jsonl",
            seed=seed,
            click_delay_s=1200,
            disorder_s=300,
        )
        unbroken = place / "unbroken"
        self.past = place / "past"
        adlog(rows=400, seed=seed + 1, out=self.past, days=1)
        self.past /= "impressions"
        options: dict[str, Any] = {"once": True, "publish_at_end": False, "warm_up": [str(self.past)]}
        loop(self.data, self.chunks, unbroken, engine=engine_of(kind, self.data, unbroken), **options).run()
        self.expected = self._facts(unbroken)

    def _training(self, kills: int) -> None:
        folder = self.place / f"run-{self.runs}"
        folder.mkdir()
        source = self.source(folder / "stream")
        model = folder / "model"
        producer = threading.Thread(target=self._produce, args=(source, random.Random(self.rng.random())))
        self.pace = self.usual_pace
        self.trouble: list[BaseException] = []
        producer.start()
        try:
            more = True
            while more and self.kills < kills:
                more = self._life(source.where, model)
                self.kills += 1
                self._look(model)
                source.disturb(self.rng)
            self.pace = 0.0
            producer.join()
            if self.trouble:
                raise Broken(f"the producer failed: {self.trouble[0]!r}") from self.trouble[0]
            self._life(source.where, model, once=True)
            self._compare(model)
            self.events += self.total
        finally:
            self.pace = 0.0
            producer.join()
            source.close()
        shutil.rmtree(folder)

    def _produce(self, source: Source, rng: random.Random) -> None:
        try:
            for chunk in sorted(self.chunks.iterdir()):
                source.hand_over(chunk)
                time.sleep(self.pace * rng.random() * 2)
        except BaseException as error:
            self.trouble.append(error)

    def _life(self, stream: str, model: Path, once: bool = False) -> bool:
        """A process, killed a moment after it said a word for the n-th time. False: nothing is left to learn from."""
        said, times = self.rng.choice(WORDS), self.rng.randrange(1, 4)
        delay = self.rng.choice([0, 0.001, 0.01]) * self.rng.random()
        command = [sys.executable, "-m", "tests.loop.online_world", str(self.data), stream, str(model)]
        command += ["--warm-up", str(self.past), "--model", self.kind, *["--once"] * once]
        errors = self.place / "errors"
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        }
        killed, last, idle = False, "", 0
        with (
            errors.open("w") as stderr,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=env, text=True) as child,
        ):
            assert child.stdout is not None
            for line in child.stdout:
                last = line.strip()
                times -= last == said
                idle = idle + 1 if last == "idle" else 0
                if not once and (times <= 0 or idle > IDLE):
                    time.sleep(delay)
                    child.kill()
                    killed = True
                    break
            code = child.wait()
        if once and code != 0:
            raise Broken(f"the last loop of {model} ended with {code}: {errors.read_text()[-3000:]}")
        if not once and code not in (0, -9):
            raise Broken(f"a loop ended by itself with {code} in {model}: {errors.read_text()[-3000:]}")
        self.during[last] += killed
        return not (idle > IDLE and self._all_learned(model))

    def _all_learned(self, model: Path) -> bool:
        found = last_checkpoint(model, lambda line: None)
        return found is not None and found.state["learner"]["join"]["counts"] == self.expected["counts"]

    def _look(self, model: Path) -> None:
        where = f"seed {self.seed}, run {self.runs}, kill {self.kills}, {model}"
        if not model.exists():
            return  # killed before it made the folder
        try:
            found = last_checkpoint(model, self._damaged)
            published = ModelFolder.open(model).published
            if wrong := published.verify():
                raise Broken(f"{where}: {wrong}")
            current = len(published.log())
            files = sorted(p for p in (model / "weights" / "versions").glob("*.fbw") if p.stem.isdigit())
            learned = [_learned(path) for path in files if int(path.stem) <= current]
        except CtrboxError as error:
            raise Broken(f"{where}: {error}") from error
        if learned != sorted(set(learned)):
            raise Broken(f"{where}: versions learned from {learned} examples")
        if found is None:
            if current > 1:
                raise Broken(f"{where}: a version without a checkpoint")
        elif _learned(published.file()) > found.state["learned"]:
            raise Broken(f"{where}: a version learned from more examples than the checkpoint")

    def _damaged(self, line: str) -> None:
        raise Broken(line)

    def _compare(self, model: Path) -> None:
        met = self._facts(model)
        for name, value in self.expected.items():
            if met[name] != value:
                shown = "" if isinstance(value, bytes) else f": {met[name]!r}, expected {value!r}"
                raise Broken(f"seed {self.seed}, run {self.runs}, {model}: {name} differs{shown}")

    def _facts(self, model: Path) -> dict[str, Any]:
        """Everything that an unbroken loop ends with."""
        found = last_checkpoint(model, self._damaged)
        assert found is not None
        versions = [(v.note, v.sha256) for v in ModelFolder.open(model).published.log()]
        held = found.tables["held"].drop_columns([CHUNK])  # a broker has other names for its chunks
        return {
            "counts": found.state["learner"]["join"]["counts"],
            "learned": found.state["learned"],
            "versions": versions,
            "batch": str(found.tables["batch"].to_pylist()) if "batch" in found.tables else "",
            "held": json.dumps(held.to_pylist(), default=str, sort_keys=True),
            "clicks": sorted(map(str, found.tables["clicks"].to_pylist())),
            "weights": weights_in(Checkpoints(model / "online").found()[-1]),
        }


def last_checkpoint(model: Path, tell: Any) -> Checkpoint | None:
    """Return the newest checkpoint of a model folder, after its files were checked."""

    def read(place: Path, learned: Any) -> Any:
        return OnlineFfm.read(place, learned) if (place / "engine.ffm").exists() else read_state(place / "model")

    return Checkpoints(model / "online").last(tell, read=read)


def weights_in(place: Path) -> bytes:
    """Return the weights and optimizer states of a checkpoint: rows of tables in the order of their keys."""
    if (place / "engine.ffm").exists():
        return (place / "engine.ffm").read_bytes()
    kept = [(place / "model" / f"{name}.safetensors").read_bytes() for name in ("dense", "optimizer")]
    for path in sorted((place / "model").glob("table-*.ctrtable")):
        table = loaded(path)
        assert isinstance(table, cb.MemoryTable | cb.SparseTable)
        kept += [part.tobytes() for part in table.export()]
    return b"".join(kept)


def _learned(path: Path) -> int:
    return int(read_directory(path).about["learned"])
