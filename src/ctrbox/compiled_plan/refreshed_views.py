"""Reads the joined views of a plan again while the plan is in use, and never changes rows that a thread may be reading.

    JoinedViews ──► found(name): the files that lie at the paths of a view now      ──► refreshed(): other JoinedViews

`JoinedViews` is a plan with its joined views loaded, and with those that the state of its histories reads, of which it has
programs of its own. `refreshed` reads some of them again from their paths, and returns another `JoinedViews`: the graphs stay as
they are, only the loaded rows are replaced, and those of views that join a replaced one. The new
data are checked against the plan: another type, a missing column, a null in a column that had none, a key that occurs
twice, or no row at all is an error, and the caller continues with the old views.

Rows in memory, and a fixed version of a Delta Lake or Iceberg table, have no newer data to read.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.saved_views import reopened
from ctrbox.engines.cpu.assemble_program import Dimension
from ctrbox.engines.cpu.extract import Extractor
from ctrbox.engines.cpu.joined_views import load_dimension
from ctrbox.engines.history.columns_read import Expressions
from ctrbox.errors import CtrboxError, DataError, SourceError
from ctrbox.files.filesystems import File, find_files
from ctrbox.plan.graph.graph import FrameSpec, Graph, SourceSpec
from ctrbox.views.columns_as_recorded import AgreeingSource, Described, files_behind
from ctrbox.views.source import Source

CHANGED = "changed"  # in place of a digest: the files were read before, and others are there now
CURE = "fill such rows in this data, or train again with .fill({column}=…) on the view"


class FoundFiles(NamedTuple):
    """The files of a view as a listing shows them, without their contents. ``digest`` is equal while none of them changes."""

    digest: str
    files: int
    bytes: int


@dataclass(frozen=True)
class LoadedView:
    """A joined view as it is loaded. ``number``: 1 for what was read first, and one more each time that it is read again."""

    number: int
    digest: str  # of the listing of its files, made before they were read; "" for a view without files; or CHANGED
    rows: int
    read_at: float  # seconds since 1970
    seconds: float = 0.0  # that reading took


class Part:
    """One graph with its joined views loaded: that of the plan, or that of expressions that its histories read."""

    def __init__(self, extractor: Extractor) -> None:
        self.graph, self.tables = extractor.graph, extractor.tables
        self.chunk_rows, self.threads = extractor.chunk_rows, extractor.threads
        self.dimensions = extractor.dimensions
        self.frames = [frame for frame in joined(self.graph) if frame.id in self.dimensions]

    def needs(self, frame: FrameSpec) -> set[int]:
        return {n.param("frame") for n in self.graph.nodes(frame) if n.op == "row"}

    def below(self, names: Collection[str]) -> set[str]:
        """Return the views of ``names``, and those that join one of them in this graph."""
        changed: set[int] = {frame.id for frame in self.frames if frame.name in names}
        grew = True
        while grew:
            more = {f.id for f in self.frames if f.id not in changed and self.needs(f) & changed}
            grew = bool(more)
            changed |= more
        return {*names, *(frame.name for frame in self.frames if frame.id in changed)}

    def read_again(self, again: Collection[str], stop: threading.Event) -> Iterator[tuple[FrameSpec, Dimension, float]]:
        """Yield each frame of these views with its new rows, and the seconds that they took to read."""
        dimensions = dict(self.dimensions)
        waiting = [frame for frame in self.frames if frame.name in again]
        left = {frame.id for frame in waiting}
        while waiting:
            frame = next(f for f in waiting if not self.needs(f) & left - {f.id})
            began = time.perf_counter()
            fresh = reopened_frame(self.graph, frame)
            made = load_dimension(self.graph, fresh, self.tables, dimensions, self.chunk_rows, self.threads, stop)
            dimensions[frame.id] = made
            yield frame, made, time.perf_counter() - began
            waiting.remove(frame)
            left.remove(frame.id)


class JoinedViews:
    """A plan with its joined views loaded. It does not change; `refreshed` returns another one.

    ``histories``: what the state of its histories reads of events and of rows to be scored (`Histories.expressions`).
    ``of_histories`` has a program for each of them, over the same version of the views.
    """

    def __init__(self, plan: Plan, histories: Sequence[Expressions] = ()) -> None:
        frames = [frame for graph in (plan.graph, *(e.graph for e in histories)) for frame in joined(graph)]
        found = {frame.name: files_if_there(frames, frame.name) for frame in frames}
        loaded_before = plan._dimensions is not None or any(e.is_loaded for e in histories)
        at = time.time()
        self.plan = plan
        self.histories = tuple(histories)
        extractor = plan._request_extractor()
        self.of_histories = tuple(e.extractor(plan.threads) for e in histories)
        self.parts = [Part(e) for e in (extractor, *self.of_histories)]
        self.loaded = {}
        for name in self.names:
            files = found[name]
            changed = loaded_before and files is not None and changed_since_read(self.all_frames, name, files)
            digest = "" if files is None else CHANGED if changed else files.digest
            self.loaded[name] = LoadedView(1, digest, self.rows(name), at)

    @property
    def frames(self) -> list[FrameSpec]:
        """The joined views of the plan's own graph."""
        return self.parts[0].frames

    @property
    def dimensions(self) -> Mapping[int, Dimension]:
        return self.parts[0].dimensions

    @property
    def all_frames(self) -> list[FrameSpec]:
        return [frame for part in self.parts for frame in part.frames]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(frame.name for frame in self.all_frames))

    @property
    def numbers_of_histories(self) -> list[int]:
        """The versions of the views that histories read."""
        names = dict.fromkeys(frame.name for part in self.parts[1:] for frame in part.frames)
        return [self.loaded[name].number for name in names]

    @property
    def refreshable(self) -> list[str]:
        """Return the views whose paths can be read again."""
        return [name for name in self.names if self.loaded[name].digest]

    def rows(self, name: str) -> int:
        """Return the number of rows of a view; for a view that is joined several times, that of the largest."""
        return max(p.dimensions[frame.id].rows for p in self.parts for frame in p.frames if frame.name == name)

    def found(self, name: str) -> FoundFiles:
        """List the files that are at the paths of a view now; raise a SourceError if they cannot be listed."""
        found = files_of(self.all_frames, name)
        if found is None:
            raise SourceError(
                f"view {name!r} has no files, so it cannot be read again; only views of files can be refreshed"
            )
        return found

    def below(self, names: Collection[str]) -> list[str]:
        """Return the views of ``names`` and those that join one of them, in the order in which they are loaded."""
        changed, before = set(names), -1
        while len(changed) > before:  # a view that joins a changed one in one graph is read again for all of them
            before = len(changed)
            for part in self.parts:
                changed = part.below(changed)
        return [name for name in self.names if name in changed]

    def refreshed(
        self, names: Collection[str], numbers: Mapping[str, int] | None = None, stop: threading.Event | None = None
    ) -> JoinedViews:
        """Read these views again, with those that join them. ``numbers``: what to call the new ones; default: one more.

        Raise a `CtrboxError` or an `OSError` if something is wrong with the data. This object stays as it is.
        """
        stop = threading.Event() if stop is None else stop
        again = self.below(names)
        loaded = dict(self.loaded)
        # A view that only joins a changed one is read from its own files too, as they are now.
        found = {name: self.found(name) for name in again if self.loaded[name].digest}
        seconds = dict.fromkeys(again, 0.0)
        made = object.__new__(JoinedViews)
        made.histories, made.parts = self.histories, []
        for part in self.parts:
            now = copy.copy(part)
            now.dimensions = dict(part.dimensions)
            for frame, dimension, took in part.read_again(again, stop):
                seconds[frame.name] += took
                if not dimension.rows and (had := part.dimensions[frame.id].rows):
                    raise DataError(
                        f"view {frame.name!r} is empty now, but had {had:,} rows before, so the server keeps the old rows; "
                        "write at least one row, or restart the server if the view must be empty"
                    )
                now.dimensions[frame.id] = dimension
            made.parts.append(now)
        made.plan = self.plan._like()
        vars(made.plan)["_dimensions"] = made.parts[0].dimensions
        made.of_histories = tuple(
            e.extractor_over(part.dimensions, part.threads)
            for e, part in zip(self.histories, made.parts[1:], strict=True)
        )
        for name in again:
            before = loaded[name]
            number = before.number + 1 if numbers is None else numbers[name]
            digest = found[name].digest if name in found else ""
            loaded[name] = LoadedView(number, digest, made.rows(name), time.time(), seconds[name])
        made.loaded = loaded
        return made


def joined(graph: Graph) -> list[FrameSpec]:
    """Return the joined views of a graph."""
    return [frame for frame in graph.frames[1:] if frame.role != "log"]


def reopened_frame(graph: Graph, frame: FrameSpec) -> FrameSpec:
    """Return the frame over the data that are at its paths now, checked against the columns of its graph."""
    view = frame.view
    fresh = reopened(view.source)
    if fresh is None:
        return frame
    columns = graph.columns(frame, 0)
    types = {name: view.source.schema.field(name).type for name in columns}
    nullable = frozenset(name for name in columns if view.source.nullable(name))
    held = Described(view.name, types, nullable, cure=CURE)
    try:
        source: Source = AgreeingSource(fresh.open(), held, strict=True)
    except CtrboxError as error:
        raise type(error)(f"view {view.name!r}: {error}") from error
    return replace(frame, sources=[SourceSpec(view._changed(source=source)), *frame.sources[1:]])


def changed_since_read(frames: list[FrameSpec], name: str, found: FoundFiles) -> bool:
    """Return whether other files than those of ``found`` were read for a view, when its plan was used before."""
    read = {file.shown: file for f in frames if f.name == name for file in files_behind(f.view.source)}
    try:
        for file in read.values():
            file.version.check()
    except (CtrboxError, OSError):
        return True
    return len(read) != found.files


def files_if_there(frames: list[FrameSpec], name: str) -> FoundFiles | None:
    """List the files of a view as `files_of` does; errors in the files are found only when they are read."""
    try:
        return files_of(frames, name)
    except (CtrboxError, OSError):
        return None


def files_of(frames: list[FrameSpec], name: str) -> FoundFiles | None:
    """List the files of a view, which may be joined several times; None if one of its sources cannot be read again."""
    facts: list[tuple[object, ...]] = []
    for frame in frames:
        if frame.name != name:
            continue
        fresh = reopened(frame.view.source)
        if fresh is None:
            return None
        facts += facts_of(find_files(fresh.paths, fresh.filesystem, None))
    digest = hashlib.blake2b(repr(sorted(facts, key=repr)).encode("utf-8", "surrogateescape"), digest_size=8)
    one = set(facts)
    return FoundFiles(digest.hexdigest(), len(one), sum(int(str(fact[1])) for fact in one))


def facts_of(files: Sequence[File]) -> list[tuple[object, ...]]:
    """Return path, size, time and version of each file."""
    return [(file.shown, file.size, file.mtime_ns, repr(file.version.facts)) for file in files]
