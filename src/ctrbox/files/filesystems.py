"""Resolves paths to files on local disk, S3 and HDFS: folders, globs, hidden files and retries.

Files come in natural path order (``part-2`` before ``part-10``), which for dated and numbered logs is log
order. A list of paths keeps the order it was given in.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox.arguments.names import nearest
from ctrbox.errors import SourceError
from ctrbox.files.file_version import FileVersion, settle
from ctrbox.files.folder_manifest import MANIFEST, OBJECTS, read_manifest
from ctrbox.files.sealed_json import MOST_BYTES
from ctrbox.files.table_formats import refuse_table_formats

T = TypeVar("T")

RETRY_PAUSES_S = (0.3, 1.2)  # Three tries in all; a dead server is named within seconds.
RETRY_TOTAL_S = 8.0  # No try begins later than this, however long each one hangs.
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 5.0  # without a single byte

# A dead NameNode is given up after seconds; the client's own default is minutes.
_HDFS_DEFAULTS = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
    "dfs.client.socket-timeout": "10000",
}

HDFS = ("hdfs", "viewfs")  # schemes
S3 = ("s3", "s3a", "s3n")
_DIGITS_ALIKE = str.maketrans("123456789", "000000000")
_WILD = re.compile(r"[*?\[]")
_S3_OPTIONS = {
    "access_key": "access_key",
    "secret_key": "secret_key",
    "session_token": "session_token",
    "endpoint": "endpoint_override",
    "endpoint_override": "endpoint_override",
    "region": "region",
    "scheme": "scheme",
    "anonymous": "anonymous",
    "role_arn": "role_arn",
    "connect_timeout": "connect_timeout",
    "request_timeout": "request_timeout",
}


@dataclass(frozen=True)
class Store:
    """A filesystem, how its paths appear in messages, and whether reads from it may be tried again."""

    fs: pafs.FileSystem
    prefix: str = ""  # "s3://", "hdfs://host:port"
    remote: bool = False

    def show(self, path: str) -> str:
        return self.prefix + path

    def attempt(self, what: str, action: Callable[[], T]) -> T:
        """Run `action`. On a remote store, try it again after I/O errors. Raise a `SourceError` that names `what` if it fails."""
        pauses = RETRY_PAUSES_S if self.remote else ()
        began = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                return action()
            except FileNotFoundError as error:
                raise SourceError(
                    f"{what} "
                    f"no longer exists, although it did when the view was opened; open the view again to read "
                    f"the files that exist now"
                ) from error
            except (OSError, RuntimeError) as error:  # the HDFS client raises RuntimeError
                spent = time.monotonic() - began
                if tries > len(pauses) or spent + pauses[tries - 1] > RETRY_TOTAL_S:
                    tried = f" ({tries} tries in {spent:.1f} s)" if self.remote else ""
                    raise SourceError(f"{what} cannot be read{tried}: {first_line(error)}") from error
            time.sleep(pauses[tries - 1])


@dataclass(frozen=True)
class File:
    """One data file. `path` is its path inside the store, `shown` its path in messages, and `version` the one that is read."""

    store: Store
    path: str
    size: int
    mtime_ns: int
    version: FileVersion = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        make = lambda: FileVersion(self.store.fs, self.path, self.shown, self.size)
        object.__setattr__(self, "version", self.store.attempt(self.shown, make))
        object.__setattr__(self, "size", self.version.size)  # local: of this version, not of the listing before it

    @property
    def shown(self) -> str:
        return self.store.show(self.path)


def printable(text: str) -> str:
    """Return the text with escapes for bytes of a file name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without the place in Arrow's source code."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].removesuffix(".").strip()


def path_of_uri(uri: str) -> str:
    """Return the local path that a file:// URI names, letter by letter: "?" and "#" belong to the name."""
    return "/" + uri.removeprefix("file://").partition("/")[2]


def open_store(path: str, filesystem: Any = None, options: Mapping[str, Any] | None = None) -> tuple[Store, str]:
    """Return the store of a path, and the path inside it."""
    options = dict(options or {})
    if filesystem is not None:
        fs = filesystem if isinstance(filesystem, pafs.FileSystem) else _from_fsspec(filesystem)
        scheme, _, inside = path.rpartition("://")
        prefix = f"{scheme}://" if scheme else ""
        if scheme in HDFS:  # the host is not a part of the path
            host, slash, below = inside.partition("/")
            prefix, inside = prefix + host, slash + below
        remote = not isinstance(fs, (pafs.LocalFileSystem, pafs._MockFileSystem))
        return Store(fs, prefix, remote), inside if scheme else path
    scheme = path.partition("://")[0] if "://" in path else ""
    if scheme in S3:
        return _open_s3(path, options)
    if scheme in HDFS:
        return _open_hdfs(path, options)
    if options:
        raise SourceError(
            f"storage_options= can be used only with s3:// and hdfs:// paths, but {path!r} is a local path"
        )
    if scheme == "file":
        return Store(pafs.LocalFileSystem()), path_of_uri(path)
    if scheme:
        known = ("file", "s3", "hdfs")
        raise SourceError(
            f"{path!r} is on {scheme}://, expected a local path, s3:// or hdfs://{nearest(scheme, known)} "
            "(other stores: pass filesystem=, a pyarrow or fsspec filesystem)"
        )
    return Store(pafs.LocalFileSystem()), str(Path(path).expanduser())


class _Handler(pafs.FSSpecHandler):  # type: ignore[misc]
    """Opens a file without asking first whether the path is a file, because fsspec says no if the server does not answer."""

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self.fs.open(path, mode="rb"), mode="r")

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self.open_input_stream(path)


def _from_fsspec(filesystem: Any) -> pafs.FileSystem:
    if not all(hasattr(filesystem, name) for name in ("info", "find", "open")):
        met = type(filesystem).__name__
        raise SourceError(f"filesystem is a {met}; expected a pyarrow or fsspec filesystem")
    return pafs.PyFileSystem(_Handler(filesystem))


def _s3_options(path: str) -> tuple[str, dict[str, str]]:
    """Return an S3 path without its options, and the options, as in s3://bucket/key?endpoint=…; a lone "?" is a wildcard."""
    bare, _, query = path.partition("?")
    return (bare, dict(parse_qsl(query))) if "=" in query else (path, {})


def _refuse_several_endpoints(paths: Iterable[str], options: Mapping[str, Any]) -> None:
    """Refuse S3 paths with different options, because all files of a view are opened, saved and refreshed as those of one
    server. Buckets of one server may have different regions.
    """
    fixed = {_S3_OPTIONS.get(name, name) for name in options} | {"region"}
    first: tuple[str, dict[str, str]] | None = None
    for path in paths:
        if path.partition("://")[0] not in S3:
            continue
        bare, given = _s3_options(path)
        mine = {_S3_OPTIONS.get(name, name): value for name, value in given.items()}
        mine = {name: value for name, value in mine.items() if name not in fixed}
        first = first or (bare, mine)
        if mine != first[1]:
            names = {name for name, _ in mine.items() ^ first[1].items()}
            named = ", ".join("endpoint" if name == "endpoint_override" else name for name in sorted(names))
            raise SourceError(
                f"{bare} and {first[0]} have different options after '?' ({named}), but the files of a view must be on one S3 "
                "server; give all paths the same options, or pass them as storage_options="
            )


def _open_s3(path: str, options: dict[str, Any]) -> tuple[Store, str]:
    bare, given = _s3_options(path)
    options = {**given, **options}
    inside = bare.partition("://")[2]
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "request_timeout": REQUEST_TIMEOUT_S,
        "retry_strategy": pafs.AwsStandardS3RetryStrategy(max_attempts=1),
    }
    for name, value in options.items():
        if name not in _S3_OPTIONS:
            raise SourceError(
                f"storage option {name!r} is not an option for S3; expected one of "
                f"{', '.join(sorted(_S3_OPTIONS))}{nearest(name, _S3_OPTIONS)}"
            )
        arguments[_S3_OPTIONS[name]] = value
    # Arrow's S3 client does not look at these two itself.
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint = arguments.setdefault("endpoint_override", named)
    if endpoint and "://" in endpoint:
        scheme, _, arguments["endpoint_override"] = endpoint.partition("://")
        arguments.setdefault("scheme", scheme)
    bucket = inside.partition("/")[0]
    if not bucket:
        raise SourceError(f"{path!r} has no bucket name; expected s3://bucket/path")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if "region" not in arguments and not region:
        arguments["region"] = _region(bucket, endpoint)
    try:
        return Store(pafs.S3FileSystem(**arguments), "s3://", remote=True), inside
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise SourceError(f"{path!r} cannot be opened: {first_line(error)}") from error


def _region(bucket: str, endpoint: str | None) -> str:
    if endpoint:
        return "us-east-1"  # Servers other than Amazon's take any region, but a signature needs one.
    try:
        return str(pafs.resolve_s3_region(bucket))
    except (pa.ArrowException, OSError):
        return "us-east-1"


def _open_hdfs(path: str, options: dict[str, Any]) -> tuple[Store, str]:
    try:
        from hdfs_native import fsspec as hdfs
    except ImportError as error:
        raise SourceError(f"{path!r} needs the HDFS client: pip install 'ctrbox[hdfs]'") from error
    parts = urlsplit(path)
    kind = hdfs.ViewfsFileSystem if parts.scheme == "viewfs" else hdfs.HdfsFileSystem
    try:
        settings = {**_HDFS_DEFAULTS, **{key: str(value) for key, value in options.items()}}
        client = kind(parts.hostname, parts.port, **settings)
        store = Store(_from_fsspec(client), f"{parts.scheme}://{parts.netloc}", remote=True)
    except Exception as error:  # the client raises its own kinds, RuntimeError among them
        raise SourceError(f"{path!r} cannot be opened: {first_line(error)}") from error
    return store, path[len(store.prefix) :]


def find_files(paths: Iterable[str], filesystem: Any, options: Mapping[str, Any] | None) -> list[File]:
    """Return the data files of paths, folders and globs. Raise a SourceError if one of them has no files."""
    files: list[File] = []
    opened: dict[str, Store] = {}
    paths = list(paths)
    if filesystem is None:
        _refuse_several_endpoints(paths, options or {})
    for path in paths:
        key = path[: path.find("/", path.find("://") + 3)] if "://" in path else ""
        if key in opened and "?" not in path:
            store = opened[key]
            inside = path[len(store.prefix) :] if "://" in path else str(Path(path).expanduser())
            if path.startswith("file://"):
                inside = path_of_uri(path)
        else:
            store, inside = open_store(path, filesystem, options)
            opened[key] = store
        found = _expand(store, inside.rstrip("/") or "/", path)
        refuse_table_formats(store.fs, store.prefix, inside, (file.path for file in found))
        files.extend(found)
    settle(file.version for file in files)
    return files


def _expand(store: Store, path: str, given: str) -> list[File]:
    info = _info(store, path)
    if info.type == pafs.FileType.File:
        return [_file(store, info)]
    if info.type == pafs.FileType.Directory:
        found = _folder(store, path) if (stored := _stored(store, path)) is None else stored
        if not found:
            raise SourceError(f"folder {given} holds no data files (names that start with '_' or '.' are hidden)")
        return found
    if _WILD.search(path):
        found = _glob(store, path)
        if not found:
            raise SourceError(f"{given} matches no file{_hint(store, path)}")
        return found
    if info.type == pafs.FileType.Unknown:
        raise SourceError(f"{given} is a pipe, a socket or a device, expected a regular file or a folder")
    raise SourceError(f"{given} does not exist{_hint(store, path)}")


def _info(store: Store, path: str) -> pafs.FileInfo:
    return _asked(store, path, lambda: store.fs.get_file_info(path))


def _asked(store: Store, path: str, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns about a path. Raise a SourceError if Arrow cannot represent the path."""
    shown = printable(store.show(path))
    try:
        return store.attempt(shown, ask)
    except UnicodeError as error:
        raise SourceError(f"{shown} is or holds a file whose name is not UTF-8; rename it") from error
    except pa.ArrowInvalid as error:
        raise SourceError(f"{shown!r} cannot be read: {first_line(error)}") from error


def _list(store: Store, folder: str, recursive: bool) -> list[pafs.FileInfo]:
    if recursive and isinstance(store.fs, pafs.LocalFileSystem):
        return _walk(store, folder, ())
    selector = pafs.FileSelector(folder or ".", allow_not_found=True, recursive=recursive)

    def ask() -> list[pafs.FileInfo]:
        found: list[pafs.FileInfo] = store.fs.get_file_info(selector)
        for info in found:
            info.path.encode()  # a name that is not UTF-8 fails here, and nowhere later
        return found

    return _asked(store, folder, ask)


def _walk(store: Store, folder: str, above: tuple[tuple[int, int], ...]) -> list[pafs.FileInfo]:
    """Return everything below a local folder. A link to a folder above itself is not followed."""
    try:
        facts = Path(folder or ".").stat()
    except FileNotFoundError:
        return []
    here = (facts.st_dev, facts.st_ino)
    if here in above:
        return []
    found = []
    for info in _list(store, folder, recursive=False):
        found.append(info)
        if info.type == pafs.FileType.Directory:
            found += _walk(store, info.path, (*above, here))
    return found


def _file(store: Store, info: pafs.FileInfo) -> File:
    return File(store, _clean(info.path), info.size, info.mtime_ns or 0)


def _clean(path: str) -> str:
    return path[2:] if path.startswith("./") else path


def _folder(store: Store, folder: str) -> list[File]:
    base = folder.rstrip("/")
    found = [
        _file(store, info)
        for info in _list(store, folder, recursive=True)
        if info.type == pafs.FileType.File and not _hidden(_clean(info.path)[len(_clean(base)) :])
    ]
    return sorted(found, key=lambda file: natural(file.path))


def _stored(store: Store, folder: str) -> list[File] | None:
    """The files that the manifest of a folder on S3 or HDFS names, in their order; None for a folder without one.

    Other objects there belong to an upload that was not committed, or to the version before.
    """
    place = f"{folder.rstrip('/')}/{MANIFEST}"
    if not store.remote or _info(store, place).type != pafs.FileType.File:
        return None

    def read() -> bytes:
        with store.fs.open_input_stream(place, compression=None) as file:
            return bytes(file.read(MOST_BYTES + 1))

    files = read_manifest(_asked(store, place, read), store.show(place))
    base = f"{folder.rstrip('/')}/{OBJECTS}"
    return [File(store, f"{base}/{files[name].object}", files[name].bytes, 0) for name in sorted(files, key=natural)]


def _hidden(path: str) -> bool:
    """Return whether a part of `path` is a writer's own file or folder (_SUCCESS, .crc, _metadata, _temporary/…)."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.split("/") if part)


def natural(path: str) -> list[tuple[int, int, str]]:
    """Return a sort key that treats sequences of digits as numbers."""
    parts = re.split(r"(\d+)", path)
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts if part]


def naturally_sorted(paths: list[str]) -> list[str]:
    """Sort paths by `natural`. Paths that differ in digits alone, such as ad0001.jpg and ad0002.jpg, have that order as plain
    text too, which is found in a fraction of the time.
    """
    alike = len({path.translate(_DIGITS_ALIKE) for path in paths}) <= 1
    return sorted(paths, key=None if alike else natural)


def _glob(store: Store, pattern: str) -> list[File]:
    """Walk the pattern folder by folder, so that only folders that match are listed."""
    root = "/" if pattern.startswith("/") else ""
    *above, last = [part for part in pattern.split("/") if part]
    folders = [root]
    for part in above:
        folders = [inner for folder in folders for inner in _step(store, folder, part)]
    files: dict[str, File] = {}
    for folder in folders:
        if last == "**":
            files.update((file.path, file) for file in _folder(store, folder))
            continue
        matches = _matcher(last)
        for info in _list(store, folder, recursive=False):
            if not matches(info.base_name):
                continue
            if info.type == pafs.FileType.File:
                files[_clean(info.path)] = _file(store, info)
            elif info.type == pafs.FileType.Directory:
                files.update((file.path, file) for file in _folder(store, _clean(info.path)))
    return sorted(files.values(), key=lambda file: natural(file.path))


def _step(store: Store, folder: str, part: str) -> list[str]:
    if part == "**":
        inner = [
            _clean(info.path)
            for info in _list(store, folder, recursive=True)
            if info.type == pafs.FileType.Directory and not _hidden(_clean(info.path)[len(folder) :])
        ]
        return [folder, *inner]
    if not _WILD.search(part):
        return [part if not folder else f"{folder.rstrip('/')}/{part}"]
    matches = _matcher(part)
    return [
        _clean(info.path)
        for info in _list(store, folder, recursive=False)
        if info.type == pafs.FileType.Directory and matches(info.base_name)
    ]


def _matcher(part: str) -> Callable[[str], bool]:
    """Return a function that matches names. A wildcard matches a hidden name only if ``part`` begins with "." or "_"."""
    regex = re.compile(fnmatch.translate(part))
    return lambda name: regex.match(name) is not None and (part[0] in "._" or not _hidden(name))


def _hint(store: Store, path: str) -> str:
    """Return a hint with the name that is most like the missing one, from the nearest folder that exists."""
    plain = path[: match.start()] if (match := _WILD.search(path)) else path
    folder, _, name = plain.rpartition("/")
    try:
        while folder and store.fs.get_file_info(folder).type == pafs.FileType.NotFound:
            folder, _, name = folder.rpartition("/")
        siblings = [Path(info.path).name for info in _list(store, folder, recursive=False)]
    except (SourceError, OSError, pa.ArrowException):
        return ""
    return nearest(name, siblings)
