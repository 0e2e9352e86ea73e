"""Reads small regular files from folders that may come from somebody else.

Such a folder can hold a symbolic link to /dev/zero, whose size is 0 and which never ends, or a FIFO, which waits for a writer
forever. So a file is opened without waiting and without following a link, its kind is determined from the open handle, and no
more bytes are read than the caller allows.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from ctrbox.errors import DataError


def read_regular(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file, which must not be a symbolic link and may have at most ``most`` bytes.

    Raise a DataError for another kind of file or a larger file, and an OSError if the file cannot be opened or read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DataError(f"{path} has {size:,} bytes; expected at most {most:,}")
        found = file.read(most + 1)
    if len(found) > most:
        raise DataError(f"{path} has more than {most:,} bytes; expected at most {most:,}")
    return found


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file, or with ``follow`` also a symbolic link to one. Raise a DataError for another kind of file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DataError(f"{path} is a symbolic link; expected a regular file inside the folder") from None
        if error.errno == errno.ENXIO:  # a socket
            raise DataError(f"{path} is {kind_of(path.stat().st_mode)}; expected a regular file") from None
        raise
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is {kind_of(mode)}; expected a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def kind_of(mode: int) -> str:
    """Return what a file is, in words, from its mode."""
    for is_one, words in (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISREG, "a regular file"),
    ):
        if is_one(mode):
            return words
    return "a device"
