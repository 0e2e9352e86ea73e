"""Defines what a Deep FFM and a published click model share as served models: the newest version, and its joined views.

The plan of both is divided into a part that runs once per context and a part that runs for the candidates. Between two requests,
other joined views can replace the old ones.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ctrbox._native import ContextCache
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.refreshed_views import JoinedViews
from ctrbox.compiled_plan.split_for_requests import Split
from ctrbox.engines.missed_keys import JoinCount
from ctrbox.serve.native_scoring import Plain
from ctrbox.serve.request import Request
from ctrbox.serve.state_of_histories import ServedPast
from ctrbox.serve.view_versions import SplitViews

if TYPE_CHECKING:
    from ctrbox.serve.served_models import Scored, Scores


class Numbered(Protocol):
    @property
    def version(self) -> int: ...


Live = TypeVar("Live", bound=Numbered)


class SplitModel(ABC, Generic[Live]):
    """A served model. ``live`` is one version, loaded and checked. A request reads it once and so uses one version to its end."""

    live: Live

    def __init__(self, plan: Plan, context: tuple[str, ...], cache_bytes: int, past: ServedPast | None) -> None:
        self.past = past
        self.context = context
        self.cache = ContextCache(cache_bytes)
        self._changing = threading.Lock()  # held by whoever replaces ``live``
        self._parts = SplitViews.of(JoinedViews(plan, past.histories.expressions if past else ()), context)

    @abstractmethod
    def over(self, live: Live, parts: SplitViews) -> Live:
        """Return a version that reads these joined views."""

    @abstractmethod
    def answer(self, request: Request) -> Scored:
        """Return a score for each candidate, and the versions of model and views."""

    def plain(self) -> Plain | None:
        """Return what scores plain requests natively now; None if Python scores every request."""
        return None

    def score(self, request: Request) -> tuple[Scores, int]:
        return self.answer(request)[:2]

    @property
    def version(self) -> int:
        return self.live.version

    @property
    def split(self) -> Split:
        return self._parts.split

    @property
    def views(self) -> JoinedViews:
        return self._parts.views

    def joins(self) -> list[JoinCount]:
        return self._parts.joins()

    def take_views(self, views: JoinedViews) -> None:
        """Use other joined views from the next request on; cached contexts that read none of the changed ones stay."""
        parts = self._parts.changed(views, self.context)
        with self._changing:
            live = self.over(self.live, parts)
            before, self._parts, self.live = self._parts, parts, live
            if self.past is not None:
                self.past.take_views(views)
        if before.of_context != parts.of_context:
            self.cache.clear()
