"""Defines ``RankTable``, the embedder whose rows are owned by the ranks: each row by one rank, which its key decides.

    pull   keys → owners (all-to-all) │ every owner looks its keys up once │ rows → askers (all-to-all)
    push   gradients → owners (all-to-all), summed by key in rank order │ one step of the owner's optimizer

A push has the keys of the pull before it, so keys are sent once per step. ``ask`` sends the keys of a later pull ahead, in
another group, so that another thread may call it; ``take`` passes the answer to the pull.

Rank r owns the keys with ``shard_of(key, ranks) == r``, as shard r of a saved table does. A checkpoint of one process, or of any
number of ranks, can therefore be restored onto any other number. All calls except ``prefetch`` are collective: every rank makes
them, without keys if it has no rows.

A table with counters gets the shows and clicks of each key with its gradients. An owner whose table has counters or an admission
pushes in every step, even without keys, because the admission of a key depends on the number of pushes before it.

The owners of the objects of a Model Server each run the sub-model for their own keys, and add up the gradients of its weights in
rank order before its optimizer steps. So the sub-model is the same in all ranks.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ctrbox.embed.embedder import FixedShape, Floats, Keys, NextUse
from ctrbox.embed.embedder_traits import Traits
from ctrbox.embed.gpu.level_table import LevelTable
from ctrbox.embed.shards import Spec, places_by_shard, restore_shard, shard_path
from ctrbox.embed.ssd.sparse_table import SparseTable
from ctrbox.embed.vectors.count_keys_without_vector import BATCHES, Misses
from ctrbox.embed.vectors.model_server import ModelServer
from ctrbox.errors import CompactionError, CtrboxError, DataError, TrainError, WriteError
from ctrbox.files.atomic import remove
from ctrbox.ranks.group import Group

NO_KEYS: Keys = np.empty(0, np.int64)
EVALUATED = "evaluation"  # kind of the exchanges of a pull that creates no rows


@dataclass(frozen=True)
class Route:
    """The keys that this rank requested from each rank, and the keys that each rank requested from this one."""

    keys: Keys  # that this rank asked for
    order: np.ndarray  # their places, by owner
    mine: list[int]  # of them, for each owner
    theirs: list[int]  # keys that each rank asked this one for
    union: Keys  # these, each once, ascending
    inverse: np.ndarray  # of each key that was asked for, its place in union

    def elsewhere(self, part: int) -> tuple[int, int]:
        """Return how many of the keys other ranks own, and how many rows this rank returns to others; ``part``: this rank."""
        return len(self.keys) - self.mine[part], sum(self.theirs) - self.theirs[part]


class RankTable(FixedShape):
    """One table of a training run in one rank. ``own`` holds the rows that this rank owns."""

    _holder = "the ranks hold rows of"

    def __init__(self, group: Group, spec: Spec, adaptive_l2: float = 0.0, ahead: Group | None = None) -> None:
        """``adaptive_l2``: see `Settings`; the owner of a row adds this penalty, because only the owner knows how often all
        ranks together had its key. ``ahead``: the group in which ``ask`` exchanges keys.
        """
        self.group, self.spec, self._row, self.adaptive_l2 = group, spec, spec.row, adaptive_l2
        self.ahead = ahead
        self.expected: Route | None = (
            None  # of the next pull that may be followed by a push, where its keys were sent ahead
        )
        self.least = 0  # fewest bytes that this rank can send to others in its steps: keys, rows and gradients
        self.server = spec.kind is ModelServer
        if self.server:  # the sub-model of the job's own Model Server is restored from the last checkpoint
            spec = replace(spec, options={**spec.options, "submodel": copy.deepcopy(spec.options["submodel"])})
        self.own: Any = spec.make(group.part, group.of)
        self.pulls = 0  # that may be followed by a push
        if self.server:
            self.own.synchronize, self.own.zeros = lambda weights: group.add_up(weights, 1.0), False
            self.own.misses.alone = False  # ``pull`` looks at the keys of all ranks
        self.traits = Traits("mean" if self.server else "sum", scales_lr=True, shows=spec.takes_shows)
        self.alive = spec.options.get("counters") is not None or spec.options.get("admission") is not None
        self.found: Floats | None = (
            None  # rows of the last pull that may be followed by a push, where they are needed again
        )
        self.route: Route | None = None  # of the last pull that may be followed by a push

    # ---- the contract

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        """Do nothing. The thread that calls this may end earlier in one rank than in others, so it makes no collective call."""

    def ask(self, keys: Keys) -> Route:
        """Send the keys of a later pull to their owners. Every rank calls it, for the same pulls in the same order."""
        assert self.ahead is not None
        return self._ask(keys, self.ahead, "keys")

    def take(self, route: Route) -> None:
        """Use the keys of this route for the next pull that may create rows."""
        self.expected = route

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        if create and self.expected is not None:
            route, self.expected = self.expected, None
            if not np.array_equal(keys, route.keys):
                raise TrainError("the keys of this pull differ from the keys that were exchanged ahead for it")
        else:
            route = self._ask(keys, self.group, "keys" if create else EVALUATED)
        self.route = route if create else None
        found = self.own.pull(route.union, create=create)
        self.found = found if create and self.adaptive_l2 else None
        self.pulls += create
        if self.server and create and self.pulls == BATCHES:
            self.misses().check(self.own.data)
        if create:
            asked, returned = route.elsewhere(self.group.part)
            self.least += 8 * asked + 4 * self.row.width * returned
        got = self.group.exchange(found[route.inverse], route.theirs, route.mine, "rows" if create else EVALUATED)
        rows = np.empty((len(keys), self.row.width), np.float32)
        rows[route.order] = got
        return rows

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        route, self.route = self.route, None
        if route is None or not np.array_equal(keys, route.keys):
            raise TrainError("a push must follow the pull of the same keys")
        if self.own.nonfinite == "refuse" and not np.isfinite(gradients).all():
            # Refused by the rank whose rows it comes from, which can name them.
            raise DataError("a gradient is not finite")
        given, width = gradients, self.row.width
        if self.traits.shows:
            assert shows is not None
            assert clicks is not None
            given = np.column_stack([gradients, shows, clicks]).astype(np.float32, copy=False)
        self.least += 4 * given.shape[1] * route.elsewhere(self.group.part)[0]
        got = self.group.exchange(given[route.order], route.mine, route.theirs, "gradients")
        total = np.zeros((len(route.union), given.shape[1]), np.float32)
        ends = np.cumsum([0, *route.theirs])
        for first, last in itertools.pairwise(ends):
            total[route.inverse[first:last]] += got[first:last]  # keys of one rank differ from each other
        if self.traits.shows:
            summed, shown, clicked = (np.ascontiguousarray(a) for a in np.split(total, [width, width + 1], axis=1))
            if self.found is not None:
                met = self.own.counts(route.union)[0] + shown[:, 0]
                summed += np.float32(self.adaptive_l2) * self.found / met[:, None]
            self.own.push(route.union, summed, shows=shown[:, 0], clicks=clicked[:, 0])
        elif len(route.union) or self.alive or self.server:
            self.own.push(route.union, total)

    def scale_lr(self, factor: float) -> None:
        self.own.scale_lr(factor)

    def save(self, path: Path) -> None:
        """Write a folder with one saved table of each rank or, for a Model Server, whose sub-model is the same in all, one file.

        Rank 0 calls it; the others call ``save_part``.
        """
        if not self.server:
            path.mkdir()
        self._save(self.group.everyone(str(path))[0])

    def save_part(self) -> None:
        """Write the part of this rank into the folder that rank 0 names."""
        self._save(self.group.everyone(None)[0])

    def restore(self, path: Path) -> None:
        restore_shard(self.own, path, self.group.part, self.group.of)

    def __len__(self) -> int:
        return len(self.own)

    @property
    def nbytes(self) -> int:
        return int(self.own.nbytes)

    # ---- beyond the contract

    def misses(self) -> Misses:
        """Return how many of the keys that all ranks asked a Model Server for have no data; every rank calls it."""
        mine = self.own.misses
        found = Misses.added_up(self.group.everyone([mine.asked, mine.lost, self.pulls, mine.example]))
        found.reads = mine.reads
        return found

    def close(self) -> None:
        """Free the rows of this rank; the last checkpoint contains them."""
        below = self.own.below if isinstance(self.own, LevelTable) else self.own
        if isinstance(below, SparseTable):
            place = below.path
            self.own.close(checkpoint=False)
            remove(place)
            with contextlib.suppress(OSError):  # until the last rank has removed its own
                place.parent.rmdir()

    def _ask(self, keys: Keys, group: Group, kind: str) -> Route:
        places = places_by_shard(keys, group.of)
        order = np.concatenate(places)
        mine = [len(p) for p in places]
        theirs = group.counts(mine, kind)
        asked = group.exchange(keys[order], mine, theirs, kind)
        union, inverse = np.unique(asked, return_inverse=True)
        return Route(keys, order, mine, theirs, union, inverse)

    def _save(self, folder: str) -> None:
        """Write the part of this rank. If this fails in one rank, raise its error in every rank."""
        failed: tuple[str, str] | None = None
        try:
            if not self.server:
                self.own.save(shard_path(Path(folder), self.group.part, self.group.of))
            elif self.group.part == 0:
                self.own.save(folder)
        except CompactionError as error:  # what it saved is whole
            failed = ("compaction", str(error))
        except (CtrboxError, OSError) as error:
            failed = ("write", str(error))
        for rank, told in enumerate(self.group.everyone(failed)):
            if told is not None:
                kind, reason = told
                raise (CompactionError if kind == "compaction" else WriteError)(f"rank {rank}: {reason}")
