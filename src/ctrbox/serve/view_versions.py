"""Keeps a plan, divided for requests, together with the versions of the joined views that it reads.

A cached context contains values of the views that it reads. Its cache key therefore contains the versions of these views, and of
no others, so that new ads do not empty a cache of users.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ctrbox.compiled_plan.refreshed_views import JoinedViews
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.engines.missed_keys import JoinCount


@dataclass(frozen=True)
class SplitViews:
    """A plan with joined views. ``of_context``: versions of the views that the part of the context reads.

    ``told``: versions of all views, in the form of the response header. ``counted``: counts of the joins before these views were
    read.
    """

    views: JoinedViews
    split: Split
    of_context: tuple[int, ...]
    told: bytes
    counted: tuple[JoinCount, ...] = ()

    @staticmethod
    def of(views: JoinedViews, context: Sequence[str], counted: Sequence[JoinCount] = ()) -> SplitViews:
        split = Split(views.plan, context)
        read = {f.name for f in views.frames if f.id in frames_of_context(split)}
        versions = tuple(views.loaded[name].number for name in views.names if name in read)
        return SplitViews(views, split, versions, told_of(views), tuple(counted))

    def cache_key(self, version: int) -> bytes:
        """Return the first part of a cache key, before the bytes of the context: the versions of the model and of the context's
        views.
        """
        return b"%d %s " % (version, ",".join(map(str, self.of_context)).encode())

    def changed(self, views: JoinedViews, context: Sequence[str]) -> SplitViews:
        """Return the same plan with other views; the counts of its joins continue."""
        return SplitViews.of(views, context, self.joins())

    def joins(self) -> list[JoinCount]:
        return joins_together(self.counted, self.split.joins())


def frames_of_context(split: Split) -> set[int]:
    """Return the frame numbers of the joined views that the part of the plan for the context looks up."""
    programs = [p for e in (split.once, split.shared) if e is not None for p in e.programs]
    return {n.param("frame") for p in programs for n in p.nodes if n is not None and n.op == "row"}


def joins_together(*parts: Iterable[JoinCount]) -> list[JoinCount]:
    """Return the sums of counts of the same joins."""
    found: dict[tuple[str, tuple[str, ...]], JoinCount] = {}
    for count in (count for part in parts for count in part):
        named = (count.view, count.on)
        before = found.get(named, JoinCount(*named, 0, 0))
        found[named] = JoinCount(*named, before.keys + count.keys, before.missed + count.missed)
    return list(found.values())


def told_of(views: JoinedViews) -> bytes:
    """Return the versions of the joined views as ``ads=3, users=1``; a name is percent-encoded, as in a URL."""
    return ", ".join(f"{quote(name, safe='')}={views.loaded[name].number}" for name in views.names).encode()
