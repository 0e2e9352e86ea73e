"""Tells URLs such as s3://bucket/run from local paths, and refuses them where only local paths are supported.

``Path("s3://bucket/run")`` is ``s3:/bucket/run``: pathlib merges the two slashes. A path that begins with a scheme and one slash
therefore counts as a URL as well; otherwise a run would be written into a local folder called ``s3:``. A scheme has at least two
letters. For a local folder that really is called ``s3:``, write its absolute path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ctrbox.errors import PlanError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)")
WEB = ("http", "https")  # from which published models can be read (publish/web_folder.py)
STORES = ("s3", "s3a", "s3n", "hdfs", "viewfs")  # schemes of storage that holds whole folders (stored_folder.py)


def url_of(path: str | os.PathLike[str]) -> str | None:
    """Return a path that is a URL, with both slashes after its scheme; None for a local path."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    met = _URL.match(text) if isinstance(text, str) else None
    if met is None:
        return None
    if len(met[2]) > 1:
        return met.string
    return f"{met[1]}:{'///' if met[1].lower() == 'file' else '//'}{met.string[met.end() :]}"


def stored_url(path: str | os.PathLike[str], what: str) -> str | None:
    """Return the URL of a folder on S3 or HDFS, or None for a local path; raise a `PlanError` for every other URL.

    ``what``: what lies there, such as "a run folder".
    """
    url = url_of(path)
    if url is None or url.partition(":")[0] in STORES:
        return url
    if url.lower().startswith("file:"):
        refuse_url(path, what)
    raise PlanError(f"{url} is a URL, but {what} can only be on a local disk, on s3:// or on hdfs://")


def readable_url(path: str | os.PathLike[str], what: str) -> str | None:
    """Return the URL of a folder that is only read: as `stored_url`, and also one on an HTTP server."""
    url = url_of(path)
    return url if url is not None and url.partition(":")[0] in WEB else stored_url(path, what)


def local_path(path: str | os.PathLike[str], what: str) -> Path:
    """Return a path as a `Path`, or raise a `PlanError` if it is a URL. ``what``: what lies there, such as "a saved plan"."""
    refuse_url(path, what)
    return Path(path)


def refuse_url(path: str | os.PathLike[str], what: str) -> None:
    """Raise a `PlanError` if a path is a URL; ``what``: what lies there, such as "a saved plan"."""
    url = url_of(path)
    if url is None:
        return
    if url.lower().startswith("file:///"):
        raise PlanError(f"{url} is a URL, but {what} needs a plain path; write it as {url[7:]}")
    raise PlanError(
        f"{url} is a URL, but {what} can only be on a local disk; use a local path instead, and copy the files with a "
        "tool for that storage"
    )
