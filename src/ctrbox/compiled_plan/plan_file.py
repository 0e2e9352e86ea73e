"""The file that a plan is saved to, and how it is read.

    offset          bytes  what
    0               8      b"CTRBOXPL"
    8               4      version of the layout, little-endian
    12              8      length of the header H
    20              H      JSON: expressions, features, views, and of each blob its length and SHA-256
    20 + H          …      the blobs, one after the other: words (Arrow IPC), ids, vectors, fitted arrays
    size - 32       32     SHA-256 of everything before

A file is written under another name, synced and renamed. Reading uses no data before its checksum was compared, runs no
code of the file, and imports a user's operator only if the caller allows it. Operators that the caller passes are used as
they are. Paths are stored as they were given, but without secrets; no path is opened before the plan runs, and then only
if the user allows it (`saved_views`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.compiled_plan.fingerprint import fingerprint, plain_array
from ctrbox.compiled_plan.plan import Plan
from ctrbox.compiled_plan.saved_views import check_names, read_view, view_entry
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.files.atomic import written_aside
from ctrbox.files.untrusted_files import open_regular
from ctrbox.files.urls import local_path
from ctrbox.plan.graph.expression_json import (
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
from ctrbox.plan.graph.unfilled_nulls import NullsUnfilled
from ctrbox.plan.language.encode import EncodeOperator
from ctrbox.plan.language.tables_of_operators import Dictionary, misfit
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.plan.placement.device_description import Device
from ctrbox.views.allowed_paths import Allowed, to_allow
from ctrbox.views.view import View

MAGIC = b"CTRBOXPL"
VERSION = 1
HEAD = struct.Struct("<8sIQ")
MOST_HEADER_BYTES = 256 << 20
DTYPES = frozenset(["|b1", "|u1", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"])
BROKEN = (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, RuntimeError)
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


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
        plain = plain_array(array)
        if plain.dtype.str not in DTYPES:
            raise PlanError(
                f"an operator holds an array of type {plain.dtype}, which a saved plan cannot contain; expected numbers or "
                "bytes"
            )
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
    """Write a plan to a file; raise a PlanError if it contains something that loading could not find again."""
    writer, blobs = Writer(), Blobs()
    log = writer.view(plan.log)
    check_names(writer.views)
    views = [view_entry(view, writer.steps(view), plan.graph) for view in list(writer.views)]
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
        raise PlanError(
            f"the description of the plan needs {len(text):,} bytes, but a saved plan can have at most "
            f"{MOST_HEADER_BYTES:,}; use fewer features"
        )
    _write(local_path(path, "a saved plan"), [HEAD.pack(MAGIC, VERSION, len(text)), text, *blobs.parts])


def _write(path: Path, parts: Sequence[Any]) -> None:
    whole = hashlib.sha256()
    with written_aside(path) as aside, aside.open("wb") as file:
        for part in parts:
            whole.update(part)
            file.write(part)
        file.write(whole.digest())


def _check_importable(operator: UserOperator) -> None:
    if isinstance(operator, EncodeOperator):  # is found by the facts of its encoder
        return
    module, _, name = operator.path.partition(":")
    cure = "put it at the top level of a module that can be imported"
    if module == "__main__" or not DOTTED.fullmatch(module) or not DOTTED.fullmatch(name):
        raise PlanError(
            f"operator {operator.path!r} cannot be saved: a saved plan names each operator by its import path, and a lambda, "
            f"a nested function or a function of the script that is running (__main__) cannot be imported; {cure}"
        )
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not operator and found is not operator.function and found != operator:
        raise PlanError(f"operator {operator.path!r} cannot be saved: that path names another object; {cure}")


# ---- loading -----------------------------------------------------------------------------------------------


def load_plan(
    path: str | os.PathLike[str],
    *,
    views: Mapping[str, Any] | None = None,
    allow_operators: bool | Sequence[UserOperator] = False,
    allow_views: Sequence[str] = (),
) -> Plan:
    """Read a plan and open none of its paths. ``views``: other data (or the data in memory it was saved with) by view name.
    ``allow_operators``: True imports the operators that the plan names; a list allows these operators alone and imports nothing.
    ``allow_views``: paths that the plan may open when it runs, beyond those below the current folder or beside the plan.

    A column that could be null when the plan was saved may still be null, whatever the new data contain. Rows of requests may
    therefore lack what rows of the log lacked.
    """
    place = local_path(path, "a saved plan")
    header, blobs = _read(place)
    allowed = Allowed(allow_views, _beside(place))
    given = dict(views or {})
    try:
        try:
            plan = _rebuild(header, blobs, given, allow_operators, allowed, strict=False)
        except NullsUnfilled:
            # The given data may hold nulls that the plan has no value for: it runs until it meets one.
            plan = _rebuild(header, blobs, given, allow_operators, allowed, strict=True)
    except CtrboxError:
        raise
    except BROKEN as error:
        raise malformed(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    return plan


def paths_to_allow(path: Path, *, log: bool = True) -> list[str] | None:
    """Return the paths that a user must allow before a saved plan can read its views; ``log=False`` leaves out its log.

    None means that allowing paths is not enough, because a view had rows in memory, or the plan has operators of the user.
    """
    try:
        load_plan(path)
    except PlanError:
        return None
    header, _ = _read(path)
    allowed = Allowed((), _beside(path))
    for number, entry in enumerate(a_list(header.get("views"), "views")):
        if number == header.get("log") and not log:
            continue
        if entry.get("source") is None:
            return None
        allowed.asked[str(number)] = list(entry["source"]["paths"])
    return list(dict.fromkeys(to_allow(refused) for refused in allowed.refused_views().values()))


def _beside(path: Path) -> Path:
    """Return the folder whose data a plan may open: the plan's own, or the one that holds the folder of its run or model.

    For a run in runs/JOB, where `ctrbox train` puts it, this is the folder that contains runs.
    """
    folder = path.parent.resolve()
    if not any((folder / name).is_file() for name in ("config.json", "serve.json")):
        return folder
    return folder.parent.parent if folder.parent.name == "runs" else folder.parent


def _read(path: Path) -> tuple[dict[str, Any], list[memoryview]]:
    """Return the header and the blobs of a file, after all checksums were compared."""
    try:
        with open_regular(path, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            # Read, not mapped: a mapped file that is cut off later would end the process with SIGBUS.
            data = memoryview(file.read(size))
            size = len(data)
    except FileNotFoundError:
        raise PlanError(f"there is no saved plan at {path}") from None
    except (OSError, ValueError, DataError) as error:
        raise PlanError(f"the plan at {path} cannot be read: {error}") from error
    if bytes(data[:8]) != MAGIC:
        raise PlanError(f"{path} is not a saved plan: it does not begin with {MAGIC.decode()}")
    if size < HEAD.size + 32:
        raise PlanError(f"the plan at {path} is cut off after {size} bytes; copy it again from where it was saved")
    _, version, length = HEAD.unpack(data[: HEAD.size])
    if version > VERSION:
        raise PlanError(
            f"the plan at {path} has format version {version}, but this version of CTRBox reads up to "
            f"{VERSION}; update ctrbox"
        )
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise PlanError(
            f"the plan at {path} is damaged or cut off, because its checksum does not match; copy it again, or save the plan "
            "again"
        )
    room = min(MOST_HEADER_BYTES, size - HEAD.size - 32)
    if version < 1 or length > room:
        raise PlanError(
            f"the plan at {path} is malformed: it begins with format version {version} and a header size of {length:,} bytes, "
            f"expected version 1 or later and at most {room:,} bytes; save the plan again"
        )
    begin = HEAD.size + length
    try:
        header = a_dict(json.loads(bytes(data[HEAD.size : begin])), "the header")
    except (ValueError, RecursionError) as error:
        raise malformed(f"its header is not JSON ({error})") from None
    return header, list(_blobs(header, data[begin:-32]))


def _blobs(header: dict[str, Any], data: memoryview) -> Iterator[memoryview]:
    at = 0
    for entry in a_list(header.get("blobs"), "blobs"):
        length = a_number(a_dict(entry, "a blob").get("length"), "a blob's length", len(data) - at + 1)
        part = data[at : at + length]
        if hashlib.sha256(part).hexdigest() != entry.get("sha256"):
            raise malformed("the checksum of one of its arrays does not match")
        yield part
        at += length
    if at != len(data):
        raise malformed(f"{len(data) - at:,} bytes at its end belong to none of its parts")


def _rebuild(
    header: dict[str, Any],
    parts: list[memoryview],
    given: dict[str, Any],
    allow_operators: bool | Sequence[UserOperator],
    allowed: Allowed,
    strict: bool,
) -> Plan:
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
    made: dict[str, Any] = {}
    for entry in written:
        views.append(read_view(entry, reader, views, given, allowed, made, strict))
    log = a_number(header.get("log"), "the log", max(1, len(views)))
    features = reader.features(header.get("features"))
    plan = Plan(views[log], features, device=a_text(header.get("device"), "the device"))
    fitted: dict[int, dict[str, np.ndarray]] = {}
    for number, state in a_dict(header.get("fitted"), "what was fitted").items():
        if not number.isdecimal() or int(number) >= len(plan.graph.fits):
            raise malformed(f"it holds values for the fitted operator {number[:20]!r}, which the plan does not have")
        arrays = {name: _array(*blob(place)) for name, place in a_dict(state, "a fit").items()}
        wrong = misfit(plan.graph.fits[int(number)].how, arrays)
        if wrong:
            raise malformed(wrong)
        fitted[int(number)] = arrays
    if fitted and len(fitted) < len(plan.graph.fits):
        raise malformed(f"it holds the values of {len(fitted)} of {len(plan.graph.fits)} fitted operators")
    return plan._like(fitted=fitted)


def _words(data: memoryview) -> pa.Array:
    try:
        with pa.ipc.open_stream(pa.py_buffer(bytes(data))) as stream:
            column = stream.read_all().column("word").combine_chunks()
        column.validate(full=True)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise malformed(f"the words of a dictionary cannot be read ({error})") from None
    return column


def _array(entry: dict[str, Any], data: memoryview) -> np.ndarray:
    dtype = a_text(entry.get("dtype"), "an array's type")
    shape = [a_number(n, "an array's shape") for n in a_list(entry.get("shape"), "an array's shape", most=4)]
    if dtype not in DTYPES:
        raise malformed(f"it contains an array of the type {dtype[:20]!r}")
    count = 1
    for n in shape:
        count *= n
    if count * np.dtype(dtype).itemsize != len(data):
        raise malformed(f"it contains an array of shape {shape}, which does not fit its {len(data):,} bytes")
    return np.frombuffer(data, dtype).reshape(shape).copy()


def operators_of(plan: Plan) -> list[UserOperator]:
    """Return the user's operators that a plan uses, in its views and in its features."""
    writer = Writer()
    writer.view(plan.log)
    for view in list(writer.views):
        writer.steps(view)
    writer.features(plan.features)
    return writer.operators


def _operator(written: dict[str, Any], allowed: bool | Sequence[UserOperator]) -> UserOperator:
    """Return a user's operator by its import path, if its declaration is still the one that was saved.

    A list of allowed operators is searched by path; a path that is not in it is never imported.
    """
    if "encoder" in written:
        return _encoder(a_dict(written["encoder"], "an encoder"), () if isinstance(allowed, bool) else allowed)
    path = a_text(written.get("path"), "an operator's path")
    module, _, name = path.partition(":")
    if not DOTTED.fullmatch(module) or not DOTTED.fullmatch(name):
        raise malformed(f"{path[:60]!r} is not an import path")
    declared = UserOperator(
        len,
        texts(written.get("args"), "an operator's arguments"),
        a_text(written.get("result"), "an operator's result"),
        a_flag(written.get("nullable"), "nullable"),
        a_text(written.get("arrays"), "arrays"),
        a_text(written.get("cuda", ""), "a CUDA body"),
        a_flag(written.get("scalar", False), "scalar"),
    )
    known = {} if isinstance(allowed, bool) else {operator.path: operator for operator in allowed}
    found: Any
    if path in known:
        found = known[path]
    elif allowed is not True:
        raise PlanError(
            f"the plan uses the operator {path!r}"
            f", and loading the plan would import (and so run) that module; if you "
            f"trust it: cb.Plan.load(…, allow_operators=True)"
        )
    else:
        try:
            found = importlib.import_module(module)
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
            raise PlanError(
                f"operator {path!r} has other argument or result types than when the plan was saved; restore its "
                "declaration, or save the plan again"
            )
        if (found.cuda, found.scalar) != (declared.cuda, declared.scalar):
            raise PlanError(
                f"operator {path!r} has another CUDA body or other options than when the plan was saved; restore its "
                "declaration, or save the plan again"
            )
        return found
    raise PlanError(f"{path!r} is a {type(found).__name__}, expected a function declared with @cb.operator")


def _encoder(written: dict[str, Any], allowed: Sequence[Any]) -> UserOperator:
    """Return the allowed encoder that has the facts of the saved one, including the checksum of its weights."""
    facts = {
        name: a_text(value, "a fact of an encoder") for name, value in a_dict(written.get("facts"), "facts").items()
    }
    name = facts.get("name", "")[:60]
    given = [
        getattr(one, "operator", one) for one in allowed
    ]  # a cb.tables.Encoder, or the operator that it is in a plan
    encoders = [one for one in given if isinstance(one, EncodeOperator)]
    for one in encoders:
        if dict(one.facts) == facts and one.width == written.get("width"):
            return one
    wanted = f"the plan encodes a column with the encoder {name!r} (module {facts.get('module', '')[:60]!r})"
    near = next((dict(one.facts) for one in encoders if dict(one.facts).get("name") == facts.get("name")), None)
    if near is None:
        raise PlanError(
            f"{wanted}, which a saved plan does not contain; pass it: cb.Plan.load(…, allow_operators=[encoder])"
        )
    other = [fact for fact in facts if near.get(fact) != facts[fact]] or ["width"]
    raise PlanError(f"{wanted}; the given encoder of this name has other {' and '.join(other)}")
