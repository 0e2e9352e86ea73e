"""Decides which paths of a file that somebody else may have written are opened.

A saved plan names the paths of its views. Reading it opens none of them; running it opens a path only if the user allows it:

- a local path below the current folder; a link there is the user's own and may lead elsewhere;
- a local path below the folder beside the plan, which may come from somebody else like the plan: its links must stay inside;
- a path below one that the user named: ``allow_views=["/data/logs", "s3://bucket/"]``, or the environment variable
  ``CTRBOX_ALLOW_VIEWS``, with commas between the paths. ``"*"`` allows every path.

A remote path is never allowed by itself: opening it sends a signed request to the host that the path names. An entry for S3
allows other options (an endpoint, a role) only where it carries the same ones: ``s3://bucket/?endpoint=minio:9000``.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from ctrbox.errors import PlanError
from ctrbox.files.filesystems import path_of_uri

VARIABLE = "CTRBOX_ALLOW_VIEWS"
EVERYTHING = "*"
_WILD = re.compile(r"[*?\[]")


class Allowed:
    """The paths that a user allows a file to name. ``beside``: the folder that holds the plan's own folder."""

    def __init__(self, named: Sequence[str] = (), beside: Path | None = None) -> None:
        if isinstance(named, str | os.PathLike):
            raise PlanError(
                f"allow_views= must be a list of paths, got {os.fspath(named)!r}; write [{os.fspath(named)!r}]"
            )
        self.named = [os.fspath(path) for path in named]
        self.named += [path.strip() for path in os.environ.get(VARIABLE, "").split(",") if path.strip()]
        # A program that runs in "/", as services do, would allow every file of the machine.
        self.here = str(Path.cwd()).rstrip("/")
        self.roots = [] if beside is None or os.path.realpath(beside) == "/" else [os.path.realpath(beside)]
        self.roots += [self.here] if self.here else []
        self.roots += [os.path.realpath(local) for path in self.named if (local := _local(path)) is not None]
        self.asked: dict[str, list[str]] = {}  # the paths that the file names, by view

    def refused_views(self) -> dict[str, str]:
        """Return every view that the user does not allow, with the first path of it that is refused."""
        found = {view: self.refused(paths) for view, paths in self.asked.items()}
        return {view: path for view, path in found.items() if path is not None}

    def refused(self, paths: Iterable[str]) -> str | None:
        """Return the first path that the user does not allow, or None if all are allowed."""
        return next((path for path in paths if not self._allows(path)), None)

    def _allows(self, path: str) -> bool:
        if EVERYTHING in self.named:
            return True
        local = _local(path)
        if local is None:
            return any(_local(entry) is None and _below(path, entry) for entry in self.named)
        wild = _WILD.search(local)
        if wild is not None:
            if ".." in local[wild.start() :].split("/"):
                return False
            local = local[: wild.start()].rpartition("/")[0] or ("/" if local.startswith("/") else ".")
        if self.here and ".." not in local.split("/") and _inside(str(Path(local).absolute()), self.here):
            return True
        return any(_inside(os.path.realpath(local), root) for root in self.roots)


def to_allow(path: str) -> str:
    """Return what a user names to allow a path: the path itself, or the folder in which its wildcards begin."""
    wild = _WILD.search(path)
    if _local(path) is None or wild is None:
        return path
    return path[: wild.start()].rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _local(path: str) -> str | None:
    """Return a path of this machine as the reader opens it; None for a remote one."""
    if path.startswith("file://"):
        return path_of_uri(path)
    return None if "://" in path or path == EVERYTHING else str(Path(path).expanduser())


def _below(path: str, entry: str) -> bool:
    """Return whether a remote path lies below an allowed one, on the same host and with the same options."""
    (place, options), (root, allowed) = _remote(path), _remote(entry)
    return options == allowed and ".." not in place.split("/") and (place == root or place.startswith(root + "/"))


def _remote(path: str) -> tuple[str, list[tuple[str, str]]]:
    scheme, _, rest = path.partition("://")
    bare, mark, query = rest.partition("?")
    if not mark or "=" not in query:  # a lone "?" is a wildcard
        bare, query = rest, ""
    host, slash, inside = bare.partition("/")
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    kept = inside if ".." in inside.split("/") else posixpath.normpath(inside) if inside else ""
    return f"{scheme}://{host}{slash}{kept}".rstrip("/"), sorted(parse_qsl(query))
