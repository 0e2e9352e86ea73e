"""Saves the views of a plan: the paths of their data and their columns, and finds the data again when the plan is loaded.

A plan keeps of each view its paths (without secrets), format, Arrow types, which columns could be null, and its rows and bytes at
that time. Loading opens no path: a `RecordedSource` stands for the data until rows are asked for, and opens only what the user
allows (`ctrbox.views.allowed_paths`). Rows in memory are not kept: whoever runs the plan brings them by the view's name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pyarrow as pa

from ctrbox.arguments.names import nearest
from ctrbox.columns.kind import arrow_type, kind_of_arrow
from ctrbox.columns.times import checked_units
from ctrbox.compiled_plan.fingerprint import columns_of
from ctrbox.engines.history.history_columns_of_log import base_of
from ctrbox.errors import PlanError, SourceError
from ctrbox.files.filesystems import find_files
from ctrbox.plan.graph.expression_json import Reader, a_dict, a_list, a_number, a_text, canonical, malformed, texts
from ctrbox.plan.graph.graph import Graph
from ctrbox.views.allowed_paths import Allowed, to_allow
from ctrbox.views.columns_as_recorded import AgreeingSource, Described, RecordedSource
from ctrbox.views.snapshots.files import TableFiles
from ctrbox.views.snapshots.opening import LOGS, read_snapshot
from ctrbox.views.source import Source, like
from ctrbox.views.text_options import TextOptions, checked_options
from ctrbox.views.view import View

SECRETS = {"access_key", "secret_key", "session_token"}
MOST_WIDTH = 1 << 20  # numbers of a fixed-size list: a file must not make a schema of billions of columns
MOST_COLUMNS = 100_000


# ---- writing ----------------------------------------------------------------------------------------------


def check_names(views: Sequence[View]) -> None:
    """Raise a PlanError if two views share a name and one of them has rows in memory, which loading finds by the name."""
    named: dict[str, Source] = {}
    for view in views:
        mine = _data(view.source)
        other = named.setdefault(view.name, mine)
        if other is not mine and None in (reference_of(mine), reference_of(other)):
            raise PlanError(
                f"two views are called {view.name!r} "
                f"and one of them holds rows in memory, which a saved plan finds "
                f"by name; give them different names: cb.View(…, name='…')"
            )


def view_entry(view: View, steps: list[list[Any]], graph: Graph) -> dict[str, Any]:
    """Return what a plan's file says about a view. Columns of ``with_history`` are in its steps, not among its columns."""
    source = base_of(view.source)
    known = source.described if isinstance(source, RecordedSource) else source
    merged = graph.frames[0].sources
    return {
        "name": view.name,
        "key": list(view.key),
        "keep": view.keep,
        "source": reference_of(_data(source)),
        "columns": columns_of(view._changed(source=source)),
        "schema": base64.b64encode(_plain_schema(source.schema).serialize()).decode(),
        "rows": known.rows,
        "bytes": known.bytes,
        # Only what a plan found out is kept: asking again would read the data.
        "ordered": len(merged) > 1 and any(spec.view is view for spec in merged),
        "steps": steps,
        **({"time_units": dict(view.time_units)} if view.time_units else {}),
    }


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, f.type) for f in schema])


def _data(source: Source) -> Source:
    """Return the data itself, without the source that compares it with a description."""
    source = base_of(source)
    return source.inner if isinstance(source, AgreeingSource) else source


def reference_of(source: Source) -> Mapping[str, Any] | None:
    """Return where files are found again; None for rows in memory and streams."""
    if isinstance(source, RecordedSource):
        return source.described.reference
    if isinstance(source, TableFiles):
        snapshot = source.snapshot
        return {
            "paths": [_without_secrets(source.name)],
            "format": snapshot.format,
            "version": snapshot.version,
        }
    files = getattr(source, "_files", None)
    form = _format_name(getattr(source, "_format", None))
    if not files or form is None:
        return None
    several = re.search(r" and \d+ more$", source.name) or source.name.startswith("dataset of ")
    paths = [file.shown for file in files] if several else [source.name]
    text = getattr(source, "text_options", None)
    said = text.given() if text is not None else {}
    return {"paths": [_without_secrets(p) for p in paths], "format": form, **({"text": said} if said else {})}


def versions_of(views: Sequence[View]) -> dict[str, dict[str, Any]]:
    """Return, by the view's name, the path, format and version of each view that reads a version of a table."""
    found = {}
    for view in views:
        reference = reference_of(_data(view.source))
        if reference is not None and "version" in reference:
            found[view.name] = {
                "path": reference["paths"][0],
                "format": reference["format"],
                "version": reference["version"],
            }
    return found


@dataclass(frozen=True)
class Reopened:
    """The place at which newer data of a view are found. ``open`` opens what lies there then."""

    paths: list[str]
    filesystem: Any  # of paths that need one; None: the paths say it
    open: Callable[[], Source]


def reopened(source: Source) -> Reopened | None:
    """Return the place of newer data of a source; None for rows in memory, streams, and a fixed version of a table."""
    if isinstance(source, RecordedSource):
        reference = source.described.reference
        if reference is None or "version" in reference:
            return None
        return Reopened(list(reference["paths"]), None, source.open_anew)
    source = _data(source)
    reference = reference_of(source)
    if reference is None or "version" in reference:
        return None
    files = getattr(source, "_files", [])
    # With its secrets, which a saved plan leaves out.
    paths = [source.name] if list(reference["paths"]) == [_without_secrets(source.name)] else list(reference["paths"])
    store = files[0].store
    queried = any("://" in path and "=" in path.partition("?")[2] for path in paths)
    filesystem = store.fs if store.remote and not queried else None
    if any(file.store.remote != store.remote for file in files):
        return None
    data, form, said = paths[0] if len(paths) == 1 else paths, reference["format"], reference.get("text", {})
    return Reopened(paths, filesystem, lambda: View(data, format=form, filesystem=filesystem, **said).source)


def _format_name(form: Any) -> str | None:
    names = {"Parquet": "parquet", "IpcFile": "arrow", "Orc": "orc"}
    return names.get(type(form).__name__) or getattr(form, "name", None)


def _without_secrets(path: str) -> str:
    bare, mark, query = path.partition("?")
    if not mark or "=" not in query or not path.startswith("s3"):
        return path
    kept = [(name, value) for name, value in parse_qsl(query) if name not in SECRETS]
    return f"{bare}?{urlencode(kept)}" if kept else bare


# ---- reading ----------------------------------------------------------------------------------------------


def read_view(
    entry: dict[str, Any],
    reader: Reader,
    views: list[View],
    given: Mapping[str, Any],
    allowed: Allowed,
    made: dict[str, Any],
    strict: bool,
) -> View:
    """Return a view of a plan's file; its data stays unopened unless ``given`` has other data for it.

    ``made``: the sources made so far, by their description, so that views share a source and its footers are read once.
    """
    name = a_text(entry.get("name"), "a view's name")
    key = texts(entry.get("key"), "a key")
    keep = None if entry.get("keep") is None else a_text(entry["keep"], "keep")
    if keep not in (None, "last"):
        raise malformed("keep of a view must be absent or 'last'")
    described = _described(name, entry)
    before: tuple[Any, ...] = ()
    known: Any = {}
    if name in given:
        data, place = given[name], canonical(["given", name])
        if not isinstance(data, View):  # the same rows may be joined by several keys
            place = canonical(["given", name, key, keep])
        if place not in made:
            # Other files of the same text format are read as those that the plan was saved with.
            text, form = described.text_options, described.format_name
            said = {} if text is None or form is None else like(form, text.given(), data)
            made[place] = data if isinstance(data, View) else View(data, key, keep=keep, name=name, **said)
        view = made[place]
        agreeing = AgreeingSource(_data(view.source), described, strict=strict)
        agreeing.check(list(described.types))
        source: Source = agreeing
        for column in key:
            if column not in source.schema.names:
                raise PlanError(
                    f"key {column!r} is not a column of {source.name}{nearest(column, source.schema.names)}"
                )
        # The steps of the plan look rows up by its own key.
        key, keep, before, known = key or view.key, view.keep or keep, view.steps, view.time_units
    else:
        for column in key:
            if column not in described.types:
                raise malformed(f"key {column[:60]!r} is not among the columns of view {name[:60]!r}")
        place = canonical([name, entry.get("source"), key, keep, sorted(described.maybe_null)])
        if described.reference is not None:
            allowed.asked[name] = list(described.reference["paths"])
        if place not in made:
            made[place] = RecordedSource(described, lambda: open_view(described, key, keep, allowed))
        source = made[place]
    steps = [reader.step(s, views) for s in a_list(entry.get("steps"), "steps")]
    units = {n: a_text(u, "a unit") for n, u in a_dict(entry.get("time_units", {}), "units of times").items()}
    known = checked_units(units, list(described.types)) or known
    view = View.of(source=source, key=key, keep=keep, name=name, steps=(*before, *steps), time_units=known)
    return view.with_histories()


def _described(name: str, entry: dict[str, Any]) -> Described:
    columns = [a_list(c, "a column", length=4) for c in a_list(entry.get("columns"), "columns", MOST_COLUMNS)]
    names = [a_text(c[0], "a column") for c in columns]
    if len(set(names)) != len(names):
        raise malformed(f"two columns of view {name[:60]!r} have the same name")
    kept = _types(entry.get("schema"))
    types: dict[str, pa.DataType] = {}
    for column, kind, width, _ in columns:
        a_number(width, "the width of a list", MOST_WIDTH + 1)
        types[column] = kept[column] if column in kept else _type_of(a_text(kind, "a kind"), width)
        fixed = types[column].list_size if pa.types.is_fixed_size_list(types[column]) else 0
        if (kind_of_arrow(types[column]) or "", fixed) != (kind, width):
            raise malformed(f"column {column[:60]!r} has two types")
    source = entry.get("source")
    text: TextOptions | None = None
    if source is not None:
        paths = texts(a_dict(source, "a source").get("paths"), "paths")
        if not paths or any("\0" in path for path in paths):
            raise malformed("a view has a source without paths")
        a_text(source.get("format"), "a format")
        if "version" in source:
            a_number(source["version"], "a version", 1 << 63)
        said = a_dict(source.get("text", {}), "text options")
        unknown = set(said) - {f.name for f in fields(TextOptions)}
        if unknown:
            raise malformed(f"a view has the unknown text option {min(unknown)[:20]!r}")
        text = checked_options(**said) if said or source["format"] in ("csv", "tsv", "json") else None
        shown = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return Described(
        name,
        types,
        frozenset(column for column, _, _, nullable in columns if nullable),
        rows=_count(entry.get("rows")),
        bytes=_count(entry.get("bytes")),
        ordered=entry.get("ordered") is True,
        shown="memory" if source is None else shown,
        reference=source,
        text_options=text,
        format_name=None if source is None else source["format"],
    )


def _count(value: Any) -> int | None:
    return None if value is None else a_number(value, "a count", 1 << 62)


def _type_of(kind: str, width: int) -> pa.DataType:
    """Return a type of a kind, for plans that were saved without Arrow types."""
    try:
        found = arrow_type(kind) if kind else pa.null()
    except KeyError:
        raise malformed(f"{kind[:20]!r} is not a kind of column") from None
    return pa.list_(found.value_type, width) if width and kind.startswith("*") else found


def _types(text: Any) -> dict[str, pa.DataType]:
    if text is None:
        return {}
    try:
        data = base64.b64decode(a_text(text, "a schema"), validate=True)
        schema = pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise malformed(f"the Arrow schema of a view cannot be read ({error})") from None
    if any(isinstance(f.type, pa.BaseExtensionType) for f in schema):
        raise malformed("the Arrow schema of a view has an extension type")
    return {f.name: f.type for f in schema}


def open_view(described: Described, key: Sequence[str], keep: str | None, allowed: Allowed) -> Source:
    """Open the data that a plan's file names, if the user allows its path."""
    name, reference = described.view, described.reference
    instead = f"load(…, views={{{name!r}: …}})"
    if reference is None:
        raise PlanError(f"view {name!r} was made of rows in memory, which are not saved; pass them: {instead}")
    paths = list(reference["paths"])
    _check_allowed(name, paths, allowed, instead)
    version = reference.get("version")
    try:
        table = None
        if version is not None:
            # The log of a table is read before its files are known, so the folder with the log is checked as well.
            _check_allowed(name, [f"{paths[0]}/{log}" for log in LOGS if "://" not in paths[0]], allowed, instead)
            table = read_snapshot(paths[0], reference["format"], version)
        files = find_files(paths, None, None) if table is None else table.files
        _check_allowed(name, [file.path for file in files if not file.store.remote], allowed, instead)
        data, said = paths[0] if len(paths) == 1 else paths, reference.get("text", {})
        return View(data, key, keep=keep, name=name, format=reference["format"], version=version, **said).source
    except SourceError as error:
        raise SourceError(f"view {name!r}: {error}; or pass other data: {instead}") from error


def _check_allowed(name: str, paths: Sequence[str], allowed: Allowed, instead: str) -> None:
    refused = allowed.refused(paths)
    if refused is None:
        return
    # All at once: whoever names one path after the other meets this error once for each view.
    others = {view: path for view, path in allowed.refused_views().items() if view != name}
    also = "".join(f"; view {view!r}, which reads {path!r}, is refused too" for view, path in others.items())
    named = list(dict.fromkeys(to_allow(path) for path in (refused, *others.values())))
    instead = " and ".join([instead, *(f"load(…, views={{{view!r}: …}})" for view in others)])
    raise PlanError(
        f"the plan's file says that view {name!r} reads {refused!r}, which is neither below the current folder nor beside "
        f"the plan{also}; if you trust {'them' if others else 'it'}: load(…, allow_views={named!r})"
        f", or pass other "
        f"data: {instead}"
    )
