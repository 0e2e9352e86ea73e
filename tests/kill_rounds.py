"""Trainings that are killed at random moments, one after the other, until there were so many kills."""

from __future__ import annotations

import collections
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self


class KillRounds(ABC):
    """A subclass has ``_training``: it trains once, counts in ``kills`` and ``during`` what it kills, and compares the end."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.seed, self.rng = place, seed, random.Random(seed)
        self.kills = self.runs = 0
        self.during: collections.Counter[str] = collections.Counter()  # kills by the last word that was said

    def go(self, kills: int) -> Self:
        """So many kills, in as many trainings as that takes; the last one is let live in the end."""
        while self.kills < kills:
            self._training(kills)
            self.runs += 1
        return self

    @abstractmethod
    def _training(self, kills: int) -> None:
        """Train until the end, or until there were ``kills`` in all."""
