"""One node of `benchmarks.ams`, a process of its own: a worker or a server of one of the three strategies.

    ps-worker   images lie among the samples; workers run the sub-model
    ps-server   servers hold the images and send them; workers run the sub-model
    ams         servers hold the images and run the sub-model; workers get its vectors

In all three the vectors of ids lie on the servers (`MemoryTable`, by key), and workers agree on the gradients of what they run by
an all-reduce among them, which is not counted: the paper counts what goes between workers and servers.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import ctrbox as cb
from benchmarks.ams_job import DIM, Job, Top, load
from benchmarks.ams_wire import Wire, call, listen
from ctrbox.embed.vectors.vector_file import shard_of
from ctrbox.train.loss import loss_of

RATE = cb.optim.Adam(lr=0.0003)


def submodel(width: int) -> nn.Module:
    torch.manual_seed(1)
    return cb.tables.ImageEmbedding(width, dim=DIM)


def summing(group: Any) -> Any:
    def synchronize(weights: Any) -> None:
        flat = torch.cat([w.grad.reshape(-1) for w in weights])
        dist.all_reduce(flat, group=group)
        at = 0
        for weight in weights:
            weight.grad.copy_(flat[at : at + weight.numel()].view_as(weight))
            at += weight.numel()

    return synchronize


# ---- a server


def serve(job: Job, strategy: str, me: int, servers: int, folder: Path, group: Any) -> dict[str, Any]:
    table = cb.MemoryTable(DIM, optimizer=cb.Adagrad(lr=0.02, initial=0.1), threads=1)
    file = cb.tables.VectorFile(folder / "images", shard=me) if strategy != "ps-worker" else None
    model = None
    if strategy == "ams":
        assert file is not None
        model = cb.tables.ModelServer(file, submodel(job.width), optimizer=RATE, synchronize=summing(group))
    door, port = listen()
    (folder / f"port-{me}.part").write_text(str(port))
    (folder / f"port-{me}.part").rename(folder / f"port-{me}")
    found = {}
    while len(found) < job.workers:
        wire = Wire(door.accept()[0])
        found[int(wire.receive("hello", "<i8")[0])] = wire
    wires = [found[k] for k in range(job.workers)]
    busy = 0.0
    for _ in range(job.steps):
        ids = [w.receive("ids", "<i8") for w in wires]
        together, at = np.unique(np.concatenate(ids), return_inverse=True)
        rows = table.pull(together)
        spans = np.cumsum([0, *map(len, ids)])
        for k, wire in enumerate(wires):
            wire.send("ids", rows[at[spans[k] : spans[k + 1]]])
        if file is not None:
            keys = [w.receive("images", "<i8") for w in wires]
            began = time.perf_counter()
            every = np.concatenate(keys)
            vectors = model.pull(every) if model is not None else None
            busy += time.perf_counter() - began
            begin = 0
            for wire, mine in zip(wires, keys, strict=True):
                if vectors is not None:
                    wire.send("images", vectors[begin : begin + len(mine)])
                else:
                    wire.send("images", file.read(file.find(mine)))
                begin += len(mine)
        gradients = np.concatenate([w.receive("ids", "<f4", DIM) for w in wires])
        summed = np.zeros((len(together), DIM), np.float32)
        np.add.at(summed, at, gradients)
        table.push(together, summed)
        if model is not None:
            back = np.concatenate([w.receive("images", "<f4", DIM) for w in wires])
            began = time.perf_counter()
            model.push(every, back)
            busy += time.perf_counter() - began
    weights = None if model is None else model.submodel
    computed = 0 if model is None else model.stats()["computed"]
    return {"busy": busy, "computed": computed, "submodel": total(weights)}


# ---- a worker


def work(job: Job, strategy: str, me: int, servers: int, folder: Path, group: Any) -> dict[str, Any]:
    wires = [call(port_of(folder, k)) for k in range(servers)]
    for wire in wires:
        wire.send("hello", np.array([me]))
        wire.moved.clear()
    torch.manual_seed(0)
    top = Top()
    mine = submodel(job.width) if strategy != "ams" else None
    weights = [*top.parameters(), *(mine.parameters() if mine is not None else ())]
    step_of = torch.optim.Adam(weights, lr=RATE.lr, foreach=True)
    synchronize = summing(group)
    times, losses, read = [], [], 0.0
    images = 0
    for step in range(job.steps):
        dist.barrier(group=group)
        began = time.perf_counter()
        batch = load(folder / "samples", me, step, strategy == "ps-worker")
        read += time.perf_counter() - began
        keys, of_id = np.unique(np.concatenate([batch["common"].ravel(), batch["own"].ravel()]), return_inverse=True)
        vectors = asked(wires, "ids", keys, DIM, servers).requires_grad_()
        seen, at, first = distinct(batch)
        images += len(seen)
        if strategy == "ps-worker":
            raw = np.concatenate([batch["behavior_images"].reshape(-1, job.width), batch["ad_images"]])[first]
            given = torch.from_numpy(raw)
        else:
            given = asked(wires, "images", seen, DIM if mine is None else job.width, servers)
        of_image = mine(given) if mine is not None else given.requires_grad_()
        common = batch["common"].size
        reads = torch.from_numpy(of_id)
        parts = torch.from_numpy(at)
        looked = batch["behavior"].size
        logits = top(
            vectors[reads[:common]].view(*batch["common"].shape, DIM),
            vectors[reads[common:]].view(*batch["own"].shape, DIM),
            of_image[parts[:looked]].view(*batch["behavior"].shape, DIM),
            of_image[parts[looked:]],
        )
        # Every worker's share of the mean over all.
        loss = loss_of(logits, torch.from_numpy(batch["label"]), None) / job.workers
        step_of.zero_grad()
        loss.backward()
        told(wires, "ids", keys, vectors.grad, servers)
        if mine is None:
            told(wires, "images", seen, of_image.grad, servers)
        synchronize(weights)
        step_of.step()
        losses.append(float(loss))
        times.append(time.perf_counter() - began)
    moved: Counter[str] = sum((wire.moved for wire in wires), Counter())
    return {
        "seconds": times,
        "losses": losses,
        "moved": dict(moved),
        "images": images,
        "read": read,
        "submodel": total(mine),
        "top": total(top),
    }


def distinct(batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The images of a batch, each once; which of them every reference is; and where each is met first."""
    every = np.concatenate([batch["behavior"].ravel(), batch["ad"]])
    seen, first, at = np.unique(every, return_index=True, return_inverse=True)
    return seen, at, first


def asked(wires: list[Wire], what: str, keys: np.ndarray, width: int, servers: int) -> torch.Tensor:
    home = shard_of(keys, servers)
    for k, wire in enumerate(wires):
        wire.send(what, keys[home == k])
    out = np.empty((len(keys), width), np.float32)
    for k, wire in enumerate(wires):
        out[home == k] = wire.receive(what, "<f4", width)
    return torch.from_numpy(out)


def told(wires: list[Wire], what: str, keys: np.ndarray, gradients: torch.Tensor | None, servers: int) -> None:
    """Gradients only: the server knows which keys were asked for."""
    assert gradients is not None
    home = shard_of(keys, servers)
    for k, wire in enumerate(wires):
        wire.send(what, gradients.numpy()[home == k])


def port_of(folder: Path, server: int) -> int:
    path = folder / f"port-{server}"
    for _ in range(1200):
        if path.exists():
            return int(path.read_text())
        time.sleep(0.05)
    raise TimeoutError(f"server {server} did not come up")


def total(model: nn.Module | None) -> float:
    """A number that differs where weights do."""
    return 0.0 if model is None else sum(float(p.detach().double().abs().sum()) for p in model.parameters())


def main() -> None:
    asked_for = json.loads(Path(sys.argv[1]).read_text())
    role, me, strategy, servers = sys.argv[2], int(sys.argv[3]), asked_for["strategy"], asked_for["servers"]
    job, folder = Job(**asked_for["job"]), Path(asked_for["folder"])
    torch.set_num_threads(1)
    world = job.workers + servers
    rank = me if role == "worker" else job.workers + me
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world)
    workers = dist.new_group(list(range(job.workers)))
    others = dist.new_group(list(range(job.workers, world)))
    body, group = (work, workers) if role == "worker" else (serve, others)
    answer = body(job, strategy, me, servers, folder, group)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
