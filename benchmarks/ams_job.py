"""The job of `benchmarks.ams`: samples in files as each strategy stores them, and the part of the model that workers run.

The paper's proportions (section 7.3): six samples a user, who has 32 behavior images and 80 ids in common to all six; ten ids
and an ad image a sample. An image is used 173 times in the whole training, and is 4,096 floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ctrbox.models import MLP, AttentivePooling

SAMPLES, BEHAVIOR, COMMON, OWN = 6, 32, 80, 10  # of a user: samples, images, ids; of a sample: ids
REUSE = 173  # 320,000 images a mini-batch × 65,000 mini-batches / 0.12 billion images
DIM = 12
IDS = 200_000


@dataclass(frozen=True)
class Job:
    """``users`` of a worker and step; ``images`` in all; ``width`` of one."""

    workers: int
    steps: int
    users: int
    images: int
    width: int
    seed: int = 0

    @staticmethod
    def of(workers: int, steps: int, users: int, width: int, seed: int = 0) -> Job:
        # In a short job fewer times: a worker's batch must not meet the same few images again and again.
        once = users * (BEHAVIOR + SAMPLES)
        return Job(workers, steps, users, max(3 * once, workers * steps * once // REUSE), width, seed)

    @property
    def reuse(self) -> float:
        """How often an image is used in the whole training."""
        return self.workers * self.steps * self.users * (BEHAVIOR + SAMPLES) / self.images

    @property
    def rows(self) -> int:
        """Samples of a worker and step."""
        return self.users * SAMPLES

    def vectors(self) -> np.ndarray:
        return np.random.default_rng([self.seed, 1]).standard_normal((self.images, self.width)).astype(np.float32)

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Keys from 1 on, as numbers. One sample in five is clicked, some ads more than others."""
        rng = np.random.default_rng([self.seed, 2, worker, step])
        behavior = rng.integers(1, self.images + 1, (self.users, BEHAVIOR))
        ad = rng.integers(1, self.images + 1, self.rows)
        return {
            "common": rng.integers(1, IDS, (self.users, COMMON)),
            "own": rng.integers(1, IDS, (self.rows, OWN)),
            "behavior": behavior,
            "ad": ad,
            "label": (rng.random(self.rows) < 1 / (1 + np.exp(1.6 - np.sin(ad)))).astype(np.float32),
        }


def store(job: Job, folder: Path, inline: bool) -> int:
    """Write the samples of all workers; with ``inline`` their images among them. Returns the bytes."""
    vectors = job.vectors() if inline else None
    total = 0
    for worker in range(job.workers):
        for step in range(job.steps):
            batch = job.batch(worker, step)
            if vectors is not None:
                batch["behavior_images"] = vectors[batch["behavior"] - 1]
                batch["ad_images"] = vectors[batch["ad"] - 1]
            path = folder / f"samples-{worker}-{step:05}"
            with path.open("wb") as file:
                for name in sorted(batch):
                    np.save(file, batch[name], allow_pickle=False)
            total += path.stat().st_size
    return total


def load(folder: Path, worker: int, step: int, inline: bool) -> dict[str, np.ndarray]:
    names = ["ad", "behavior", "common", "label", "own", *(["ad_images", "behavior_images"] if inline else [])]
    with (folder / f"samples-{worker}-{step:05}").open("rb") as file:
        return {name: np.load(file, allow_pickle=False) for name in sorted(names)}


class Top(nn.Module):
    """What workers run in every strategy: the common part once a user, then a tower a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.aggregator = AttentivePooling(DIM, DIM, (16,))
        self.tower = MLP(DIM * (1 + OWN + 2), (64, 1), activation="prelu")

    def forward(
        self, common: torch.Tensor, own: torch.Tensor, behavior: torch.Tensor, ad: torch.Tensor
    ) -> torch.Tensor:
        """common (users, COMMON, DIM), own (rows, OWN, DIM), behavior (users, BEHAVIOR, DIM), ad (rows, DIM)"""
        of_user = common.mean(1)
        user = torch.arange(len(of_user)).repeat_interleave(SAMPLES)
        lengths = torch.full((len(ad),), BEHAVIOR)
        seen = self.aggregator(behavior.index_select(0, user), lengths, ad)
        logit: torch.Tensor = self.tower(of_user.index_select(0, user), own.flatten(1), seen, ad).squeeze(1)
        return logit
