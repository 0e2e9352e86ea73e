"""Plans in files, and their fingerprints.

    offset          bytes  what
    0               8      b"CTRBOXPL"
    8               4      version of the layout, little-endian
    12              8      length of the header H
    20              H      JSON: expressions, features, views, and of each blob its length and SHA-256
    20 + H          …      the blobs, one after the other: words (Arrow IPC), ids, vectors, fitted arrays
    size - 32       32     SHA-256 of everything before

A file is written aside, synced and renamed. Reading believes nothing before its checksum fits, runs no code
of the file, and imports a user's operator only when it is allowed to. Paths are kept as they were given,
secrets in them are not; rows in memory are not kept, only their columns: whoever loads the plan brings them.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import struct
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pyarrow as pa

from ctrbox.columns.kind import kind_of_arrow, name_of
from ctrbox.columns.times import checked_units
from ctrbox.engines.aside import written_aside
from ctrbox.engines.plan import Plan
from ctrbox.errors import CtrboxError, PlanError, SourceError, nearest
from ctrbox.plan.device import Device
from ctrbox.plan.graph import Graph
from ctrbox.plan.serial import (
    Reader,
    Writer,
    a_dict,
    a_flag,
    a_list,
    a_number,
    a_text,
    canonical,
    malformed,
    sizes,
    texts,
)
from ctrbox.plan.tables import Dictionary, misfit
from ctrbox.plan.user import UserOperator
from ctrbox.views.source import Morsel, Source, like
from ctrbox.views.text_options import TextOptions
from ctrbox.views.view import View

MAGIC = b"CTRBOXPL"
VERSION = 1
KEY_FORMAT = 1  # counts changes of an operator's bits: hashes, salts, float bodies
HEAD = struct.Struct("<8sIQ")
MOST_HEADER_BYTES = 256 << 20
DTYPES = frozenset(["|b1", "|u1", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"])
SECRETS = {"access_key", "secret_key", "session_token"}
BROKEN = (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, RuntimeError)
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


# ---- the fingerprint ---------------------------------------------------------------------------------------


_digests: weakref.WeakKeyDictionary[Dictionary, str] = weakref.WeakKeyDictionary()
_fingerprints: weakref.WeakKeyDictionary[Plan, tuple[list[np.ndarray], str]] = weakref.WeakKeyDictionary()


def fingerprint(plan: Plan) -> str:
    """A digest of everything that decides the bits of a batch, the same in every process.

    Features, steps of views, the kinds and null facts of the columns that are read, dictionaries, what was
    fitted, and the names and CUDA bodies of user operators; not paths, names of views, sizes of files or
    budgets. Computed once for each fitted state of a plan.
    """
    learned = [array for _, state in sorted(plan.fitted.items()) for _, array in sorted(state.items())]
    known = _fingerprints.get(plan)
    if known is not None and [id(a) for a in known[0]] == [id(a) for a in learned]:
        return known[1]
    digest = hashlib.sha256(canonical(_canonical_form(plan)).encode()).hexdigest()
    _fingerprints[plan] = (learned, digest)
    return digest


def _canonical_form(plan: Plan) -> dict[str, Any]:
    writer = Writer()
    log = writer.view(plan.log)
    read = _columns_read(plan.graph)
    views = []
    for view in list(writer.views):
        # A merge's order and budget change no bit.
        steps = [s[:2] if s[0] == "merge" else s for s in writer.steps(view)]
        columns = _columns(view, {*read.get(id(view), ()), *view.key})
        views.append({"key": list(view.key), "keep": view.keep, "columns": sorted(columns), "steps": steps})
    features = writer.features(plan.features)
    return {
        "format": KEY_FORMAT,
        "log": log,
        "views": views,
        "features": features,
        "expressions": writer.expressions,
        "dictionaries": [_dictionary_digest(d) for d in writer.dictionaries],
        "fitted": {str(k): {n: _array_digest(a) for n, a in s.items()} for k, s in plan.fitted.items()},
    }


def _columns_read(graph: Graph) -> dict[int, set[str]]:
    """The columns that are read of each view, by the view's id."""
    read: dict[int, set[str]] = {}
    for frame in graph.frames:
        for place, source in enumerate(frame.sources):
            read.setdefault(id(source.view), set()).update(graph.columns(frame, place))
    return read


def _columns(view: View, wanted: set[str] | None = None) -> list[list[Any]]:
    """Name, kind ("" where it has none), width of a fixed-size list, and whether nulls may be met."""
    found = []
    for f in view.source.schema:
        if wanted is not None and f.name not in wanted:
            continue
        width = f.type.list_size if pa.types.is_fixed_size_list(f.type) else 0
        kind = kind_of_arrow(f.type)
        found.append([f.name, kind or "", width, kind is None or view.source.nullable(f.name)])
    return found


def _dictionary_digest(dictionary: Dictionary) -> str:
    """Of the words and values themselves: equal for slices and copies of equal words."""
    if dictionary not in _digests:
        h = hashlib.sha256(f"{dictionary.word_kind} {len(dictionary)} {dictionary.width}".encode())
        words = dictionary.words
        if dictionary.word_kind == "s":
            offsets = np.frombuffer(words.buffers()[1] or b"", np.int64)[words.offset :][: len(words) + 1]
            if len(offsets):
                h.update((offsets - offsets[0]).data)
                h.update(memoryview(words.buffers()[2] or b"")[offsets[0] : offsets[-1]])
        else:
            h.update(np.ascontiguousarray(words.to_numpy()).data)
        h.update(dictionary.ids.data)
        h.update(dictionary.vectors.data)
        _digests[dictionary] = h.hexdigest()
    return _digests[dictionary]


def _array_digest(array: np.ndarray) -> str:
    plain = _plain_array(array)
    return hashlib.sha256(f"{plain.dtype.str} {plain.shape} ".encode() + plain.tobytes()).hexdigest()


def _plain_array(array: np.ndarray) -> np.ndarray:
    plain = np.ascontiguousarray(array).reshape(np.shape(array))
    return plain.astype(plain.dtype.newbyteorder("<"), copy=False)


# ---- saving ------------------------------------------------------------------------------------------------


@dataclass
class Blobs:
    """Pieces of binary data and what the header says about each."""

    parts: list[Any] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def add(self, data: Any, **about: Any) -> int:
        view = memoryview(data).cast("B")
        self.parts.append(view)
        self.entries.append({**about, "length": view.nbytes, "sha256": hashlib.sha256(view).hexdigest()})
        return len(self.entries) - 1

    def array(self, array: np.ndarray) -> int:
        plain = _plain_array(array)
        if plain.dtype.str not in DTYPES:
            raise PlanError(f"an array of {plain.dtype} cannot be saved")
        # An empty array has no buffer to look at.
        data = plain.reshape(-1).view(np.uint8) if plain.size else b""
        return self.add(data, dtype=plain.dtype.str, shape=list(plain.shape))

    def words(self, words: pa.Array) -> int:
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_arrays([words], ["word"])
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        return self.add(sink.getvalue())


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan to a file. PlanError where it holds something that cannot be found again."""
    writer, blobs = Writer(), Blobs()
    log = writer.view(plan.log)
    _check_names(writer.views)
    views = [_view_entry(view, writer.steps(view)) for view in list(writer.views)]
    features = writer.features(plan.features)
    sizes(writer.expressions)  # what could not be loaded is not saved
    for operator in writer.operators:
        _check_importable(operator)
    dictionaries = []
    for d in writer.dictionaries:
        values = blobs.array(d.vectors.reshape(-1, d.width) if d.width else d.ids)
        dictionaries.append({"words": blobs.words(d.words), "values": values})
    fitted = {str(k): {n: blobs.array(a) for n, a in sorted(state.items())} for k, state in sorted(plan.fitted.items())}
    header = {
        "device": "cpu"
        if plan.device in ("cpu", Device("cpu"))
        else "auto",  # a GPU is where it ran, not what it computes
        "fingerprint": fingerprint(plan),
        "log": log,
        "views": views,
        "features": features,
        "expressions": writer.expressions,
        "dictionaries": dictionaries,
        "fitted": fitted,
        "blobs": blobs.entries,
    }
    text = canonical(header).encode()
    if len(text) > MOST_HEADER_BYTES:
        raise PlanError(f"the plan's description takes {len(text):,} bytes; the most is {MOST_HEADER_BYTES:,}")
    _write(Path(path), [HEAD.pack(MAGIC, VERSION, len(text)), text, *blobs.parts])


def _write(path: Path, parts: Sequence[Any]) -> None:
    whole = hashlib.sha256()
    with written_aside(path) as aside, aside.open("wb") as file:
        for part in parts:
            whole.update(part)
            file.write(part)
        file.write(whole.digest())


def _check_names(views: Sequence[View]) -> None:
    """Rows in memory are found again by the view's name, so two such sources cannot share one."""
    named: dict[str, Source] = {}
    for view in views:
        mine = _opened(view.source)
        other = named.setdefault(view.name, mine)
        if other is not mine and None in (_reference(mine), _reference(other)):
            raise PlanError(
                f"two views are called {view.name!r} and one holds rows in memory, which a saved plan finds "
                "by name; name them apart: cb.View(…, name='…')"
            )


def _view_entry(view: View, steps: list[list[Any]]) -> dict[str, Any]:
    return {
        "name": view.name,
        "key": list(view.key),
        "keep": view.keep,
        "source": _reference(_opened(view.source)),
        "columns": _columns(view),
        "steps": steps,
        **({"time_units": dict(view.time_units)} if view.time_units else {}),
    }


def _reference(source: Source) -> dict[str, Any] | None:
    """Where files are found again; None for rows in memory and streams."""
    files = getattr(source, "_files", None)
    form = _format_name(getattr(source, "_format", None))
    if not files or form is None:
        return None
    several = re.search(r" and \d+ more$", source.name) or source.name.startswith("dataset of ")
    paths = [file.shown for file in files] if several else [source.name]
    text = getattr(source, "text_options", None)
    said = text.given() if text is not None else {}
    return {"paths": [_without_secrets(p) for p in paths], "format": form, **({"text": said} if said else {})}


def _format_name(form: Any) -> str | None:
    names = {"Parquet": "parquet", "IpcFile": "arrow"}
    return names.get(type(form).__name__) or getattr(form, "name", None)


def _without_secrets(path: str) -> str:
    bare, mark, query = path.partition("?")
    if not mark or "=" not in query or not path.startswith("s3"):
        return path
    kept = [(name, value) for name, value in parse_qsl(query) if name not in SECRETS]
    return f"{bare}?{urlencode(kept)}" if kept else bare


def _check_importable(operator: UserOperator) -> None:
    module, _, name = operator.path.partition(":")
    cure = "put it at the top level of a module that can be imported"
    if module == "__main__" or not DOTTED.fullmatch(module) or not DOTTED.fullmatch(name):
        raise PlanError(
            f"operator {operator.path!r} cannot be saved: a plan keeps operators by import path, and a "
            f"lambda, a function inside a function or one of __main__ has none; {cure}"
        )
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not operator and found is not operator.function and found != operator:
        raise PlanError(f"operator {operator.path!r} cannot be saved: that name does not lead to it; {cure}")


# ---- loading -----------------------------------------------------------------------------------------------


def load_plan(
    path: str | os.PathLike[str], *, views: Mapping[str, Any] | None = None, allow_operators: bool = False
) -> Plan:
    """Read a plan. ``views``: other data (or the data in memory it was saved with) by view name.

    Of a column that could be null when the plan was saved it is still said that it can, whatever the new data
    hold: so a request's rows may lack what the log's rows lacked.
    """
    header, blobs = _read(Path(path))
    try:
        plan = _rebuild(header, blobs, dict(views or {}), allow_operators)
    except CtrboxError:
        raise
    except BROKEN as error:
        raise malformed(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    return plan


def _read(path: Path) -> tuple[dict[str, Any], list[memoryview]]:
    """Header and blobs of a file, every checksum compared."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # Read, not mapped: a mapped file that is cut off later would end the process with SIGBUS.
            data = memoryview(file.read(size))
            size = len(data)
    except FileNotFoundError:
        raise PlanError(f"there is no plan at {path}") from None
    except (OSError, ValueError) as error:
        raise PlanError(f"the plan at {path} cannot be read: {error}") from error
    if bytes(data[:8]) != MAGIC:
        raise PlanError(f"{path} is not a saved plan: it does not begin with {MAGIC.decode()}")
    if size < HEAD.size + 32:
        raise PlanError(f"the plan at {path} is cut off: {size} bytes")
    _, version, length = HEAD.unpack(data[: HEAD.size])
    if version > VERSION:
        raise PlanError(f"the plan at {path} has layout {version}, this program reads up to {VERSION}; update ctrbox")
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise PlanError(f"the plan at {path} is damaged or cut off: its checksum does not fit")
    if version < 1 or length > min(MOST_HEADER_BYTES, size - HEAD.size - 32):
        raise PlanError(f"the plan at {path} is malformed: layout {version}, a header of {length:,} bytes")
    begin = HEAD.size + length
    try:
        header = a_dict(json.loads(bytes(data[HEAD.size : begin])), "the header")
    except (ValueError, RecursionError) as error:
        raise malformed(f"its header is no JSON ({error})") from None
    return header, list(_blobs(header, data[begin:-32]))


def _blobs(header: dict[str, Any], data: memoryview) -> Iterator[memoryview]:
    at = 0
    for entry in a_list(header.get("blobs"), "blobs"):
        length = a_number(a_dict(entry, "a blob").get("length"), "a blob's length", len(data) - at + 1)
        part = data[at : at + length]
        if hashlib.sha256(part).hexdigest() != entry.get("sha256"):
            raise malformed("a blob's checksum does not fit")
        yield part
        at += length
    if at != len(data):
        raise malformed(f"{len(data) - at:,} bytes belong to nothing")


def _rebuild(header: dict[str, Any], parts: list[memoryview], given: dict[str, Any], allow_operators: bool) -> Plan:
    entries = a_list(header["blobs"], "blobs")

    def blob(place: Any) -> tuple[dict[str, Any], memoryview]:
        number = a_number(place, "a blob's place", len(entries))
        return entries[number], parts[number]

    dictionaries = [
        Dictionary(_words(blob(a_dict(d, "a dictionary").get("words"))[1]), _array(*blob(d.get("values"))))
        for d in a_list(header.get("dictionaries"), "dictionaries")
    ]
    reader = Reader(dictionaries, lambda written: _operator(written, allow_operators))
    reader.expressions(header.get("expressions"))
    written = [a_dict(v, "a view") for v in a_list(header.get("views"), "views")]
    names = [a_text(v.get("name"), "a view's name") for v in written]
    for name in given:
        if name not in names:
            raise PlanError(f"the plan has no view {name!r}{nearest(name, names) or '; it has ' + ', '.join(names)}")
    views: list[View] = []
    opened: dict[str, View] = {}
    for entry in written:
        views.append(_view(entry, reader, views, given, opened))
    log = a_number(header.get("log"), "the log", max(1, len(views)))
    features = reader.features(header.get("features"))
    plan = Plan(views[log], features, device=a_text(header.get("device"), "the device"))
    for number, state in a_dict(header.get("fitted"), "what was fitted").items():
        if not number.isdecimal() or int(number) >= len(plan.graph.fits):
            raise malformed(f"it holds state for fit {number[:20]!r}, which the plan lacks")
        arrays = {name: _array(*blob(place)) for name, place in a_dict(state, "a fit").items()}
        wrong = misfit(plan.graph.fits[int(number)].how, arrays)
        if wrong:
            raise malformed(wrong)
        plan.fitted[int(number)] = arrays
    if plan.fitted and len(plan.fitted) < len(plan.graph.fits):
        raise malformed(f"it holds {len(plan.fitted)} of {len(plan.graph.fits)} fits")
    return plan


def _words(data: memoryview) -> pa.Array:
    try:
        with pa.ipc.open_stream(pa.py_buffer(bytes(data))) as stream:
            column = stream.read_all().column("word").combine_chunks()
        column.validate(full=True)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise malformed(f"a dictionary's words ({error})") from None
    return column


def _array(entry: dict[str, Any], data: memoryview) -> np.ndarray:
    dtype = a_text(entry.get("dtype"), "an array's type")
    shape = [a_number(n, "an array's shape") for n in a_list(entry.get("shape"), "an array's shape", most=4)]
    if dtype not in DTYPES:
        raise malformed(f"an array of {dtype[:20]!r}")
    count = 1
    for n in shape:
        count *= n
    if count * np.dtype(dtype).itemsize != len(data):
        raise malformed(f"an array of shape {shape} in {len(data):,} bytes")
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _operator(written: dict[str, Any], allowed: bool) -> UserOperator:
    """A user's operator by its import path, if its declaration is still the one that was saved."""
    path = a_text(written.get("path"), "an operator's path")
    module, _, name = path.partition(":")
    if not DOTTED.fullmatch(module) or not DOTTED.fullmatch(name):
        raise malformed(f"{path[:60]!r} is no import path")
    declared = UserOperator(
        len,
        texts(written.get("args"), "an operator's arguments"),
        a_text(written.get("result"), "an operator's result"),
        a_flag(written.get("nullable"), "nullable"),
        a_text(written.get("arrays"), "arrays"),
        a_text(written.get("cuda", ""), "a CUDA body"),
        a_flag(written.get("scalar", False), "scalar"),
    )
    if not allowed:
        raise PlanError(
            f"the plan uses the operator {path!r}, and loading would import (run) that module; "
            "if you trust it: cb.Plan.load(…, allow_operators=True)"
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module's own code raises
        raise PlanError(f"operator {path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if isinstance(found, UserOperator):
        same = (found.args, found.result, found.nullable, found.arrays) == (
            declared.args,
            declared.result,
            declared.nullable,
            declared.arrays,
        )
        if not same:
            raise PlanError(f"operator {path!r} has other types than when the plan was saved")
        if (found.cuda, found.scalar) != (declared.cuda, declared.scalar):
            raise PlanError(
                f"operator {path!r} has another CUDA body, or another way to run, than when the plan was saved"
            )
        return found
    raise PlanError(f"{path!r} is a {type(found).__name__}, expected a function declared with @cb.operator")


def _view(
    entry: dict[str, Any], reader: Reader, views: list[View], given: dict[str, Any], opened: dict[str, View]
) -> View:
    name = entry["name"]
    key = texts(entry.get("key"), "a key")
    keep = None if entry.get("keep") is None else a_text(entry["keep"], "keep")
    columns = [a_list(c, "a column", length=4) for c in a_list(entry.get("columns"), "columns")]
    # Views that came from one source share it again, so that its footers are read once.
    place = f"given {name}" if name in given else canonical([entry.get("source"), key, keep])
    if place not in opened:
        opened[place] = _open(name, key, keep, entry.get("source"), given)
    view = opened[place]
    found = {c[0]: c for c in _columns(view)}
    for column, kind, width, _ in columns:
        if column in found and (found[column][1] or kind) and found[column][1:3] != [kind, width]:
            now, then = (name_of(k) if k else "of no simple type" for k in (found[column][1], kind))
            raise PlanError(f"column {column!r} of view {name!r} is {now}; the plan was saved on {then}")
    maybe_null = frozenset(a_text(c, "a column") for c, _, _, nullable in columns if nullable)
    steps = [reader.step(s, views) for s in a_list(entry.get("steps"), "steps")]
    units = {n: a_text(u, "a unit") for n, u in a_dict(entry.get("time_units", {}), "units of times").items()}
    fresh = object.__new__(View)
    object.__setattr__(fresh, "time_units", checked_units(units, view.columns) or view.time_units)
    source = Remembered(_opened(view.source), maybe_null)
    for attribute, value in (("source", source), ("key", view.key), ("keep", view.keep), ("name", name)):
        object.__setattr__(fresh, attribute, value)
    object.__setattr__(fresh, "steps", (*view.steps, *steps))
    return fresh


def _open(name: str, key: tuple[str, ...], keep: str | None, source: Any, given: dict[str, Any]) -> View:
    if name in given:
        data = given[name]
        # Other files of the same text format are read as those that the plan was saved with.
        said = {} if source is None else like(*_format_and_text(source), data)
        return data if isinstance(data, View) else View(data, key, keep=keep, name=name, **said)
    if source is None:
        raise PlanError(
            f"view {name!r} was rows in memory, which are not saved; give them: load(…, views={{{name!r}: …}})"
        )
    paths = list(texts(a_dict(source, "a source").get("paths"), "paths"))
    if not paths:
        raise malformed("a source without paths")
    form, said = _format_and_text(source)
    try:
        return View(paths[0] if len(paths) == 1 else paths, key, keep=keep, name=name, format=form, **said)
    except SourceError as error:
        raise SourceError(f"view {name!r}: {error}; or give other data: load(…, views={{{name!r}: …}})") from error


def _format_and_text(source: Any) -> tuple[str, dict[str, Any]]:
    """Return the format of a saved source and the text options that were given for it."""
    form = a_text(a_dict(source, "a source").get("format"), "a format")
    said = a_dict(source.get("text", {}), "text options")
    unknown = set(said) - {f.name for f in fields(TextOptions)}
    if unknown:
        raise malformed(f"a text option {min(unknown)[:20]!r}")
    return form, said


def _opened(source: Source) -> Source:
    return source.inner if isinstance(source, Remembered) else source


class Remembered:
    """A source of which more columns may be null than its data show: those that could once before."""

    def __init__(self, inner: Source, maybe_null: frozenset[str]) -> None:
        self.inner = inner
        self.maybe_null = maybe_null

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def schema(self) -> pa.Schema:
        return self.inner.schema

    @property
    def rows(self) -> int | None:
        return self.inner.rows

    @property
    def bytes(self) -> int | None:
        return self.inner.bytes

    @property
    def text_options(self) -> TextOptions | None:
        return getattr(self.inner, "text_options", None)

    @property
    def format_name(self) -> str | None:
        return getattr(self.inner, "format_name", None)

    def nullable(self, column: str) -> bool:
        return column in self.maybe_null or self.inner.nullable(column)

    def ordered(self, column: str) -> bool:
        return self.inner.ordered(column)

    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    def scan(self, columns: Sequence[str], **options: Any) -> Iterator[Morsel]:
        return self.inner.scan(columns, **options)
