"""Reads examples for Deep FFM from text files, or from a compact file into which they were parsed once.

    cache = cb.ffm.ExampleCache.parse("train.vw.gz", "train.ctrx")        # Vowpal Wabbit's text; libffm's with format="libffm"
    cb.DeepFFM(cache, k=4).learn(cache)

``native/core/ffm/vw_libffm_lines.h`` says how lines are read, and ``example_cache.h`` says what the file contains. A
malformed line is counted and left out; ``strict=True`` stops at the first such line. The name of a compressed source
ends in ``.gz`` or ``.zst``; ``"-"`` is stdin.

Text and caches are read once per epoch. If a file has changed since it was first opened, reading raises an error
(`files.file_version`).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.fs as pafs

from ctrbox import _native
from ctrbox.arguments.names import nearest
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.files.atomic import written_aside
from ctrbox.files.file_version import FileVersion, settle
from ctrbox.files.interruptible_wait import result_of
from ctrbox.files.urls import local_path, refuse_url

Format = Literal["vw", "libffm"]
FORMATS = ("vw", "libffm")

READ = 4 << 20  # bytes of text parsed at once
LONGEST = 16 << 20  # bytes of a line
BLOCK_ROWS = 32_768  # examples of a block in a file, at least
MOST_UNPACKERS = 2  # threads that unpack blocks: reading and unpacking take about as long (docs/tried.md 25)


class ExampleText:
    """Examples parsed from lines of text.

    Each iteration reads the text again; stdin and open files can be read once.

    ``fields``   names of the namespaces to read; a line with another namespace is malformed. None: all
                 namespaces, in the order in which they occur
    ``ignore``   namespaces to leave out
    ``interactions``   fields that combine several others: ("user", "ad") gives the field "user*ad" with a feature for each pair;
                 needs ``fields``
    ``strict``   whether to stop with an error at the first malformed line
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        format: Format = "vw",
        fields: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        interactions: Sequence[Sequence[str]] = (),
        strict: bool = False,
    ) -> None:
        if format not in FORMATS:
            raise PlanError(
                f"format= must be one of {', '.join(FORMATS)}, got {format!r}{nearest(str(format), FORMATS)}"
            )
        self.source, self.format, self.strict = source, format, strict
        self.given = None if fields is None else names(fields)
        if isinstance(ignore, str) or not isinstance(ignore, Iterable):
            raise PlanError(f"ignore= must be a list of field names, got {ignore!r}")
        self.ignore = [str(name) for name in dict.fromkeys(ignore)]
        if both := [name for name in self.ignore if name in (self.given or [])]:
            raise PlanError(f"{both[0]!r} is both in fields= and in ignore=; remove it from one of them")
        self.interactions = checked_interactions(interactions)
        self._crossed = crossings(self.given, self.interactions)
        self._parser = self._told = self._fresh()  # ``_told``: the parser of the last reading, also of ``over``
        self._origin: ExampleText | None = None
        self._version = version_of(source)

    @property
    def name(self) -> str:
        if isinstance(self.source, str | os.PathLike):
            return "stdin" if self.source == "-" else os.fspath(self.source)
        return str(getattr(self.source, "name", "the stream"))

    @property
    def fields(self) -> list[str]:
        """The fields that were given, otherwise those met so far."""
        if self.given is None:
            return list(self._parser.fields)
        return [*self.given, *map(crossed_name, self.interactions)]

    @property
    def lines(self) -> int:
        return self._told.lines

    @property
    def bad(self) -> int:
        return self._told.bad

    @property
    def first_bad(self) -> list[tuple[int, str]]:
        """Line number and error of each of the first ten bad lines."""
        return [(line, self._with_nearest(why)) for line, why in self._told.first_bad]

    def over(self, fields: Sequence[str]) -> ExampleText:
        """Return the same text, to be read for these fields. From then on, the counts of lines of this text, such as
        ``bad``, are those of the returned text.
        """
        crossed = list(map(crossed_name, self.interactions))
        text = ExampleText(
            self.source,
            format=self.format,
            fields=[name for name in fields if name not in crossed],
            ignore=self.ignore,
            interactions=self.interactions,
            strict=self.strict,
        )
        text._version, text._origin = self._version, self
        return text

    def __iter__(self) -> Iterator[_native.Examples]:
        self._parser = self._told = parser = self._fresh()
        if self._origin is not None:
            self._origin._told = parser
        with opened(self.source, self._version) as stream:
            for text in whole_lines(stream, self.name):
                if parser.feed(text) and self.strict:
                    line, why = self.first_bad[0]
                    raise DataError(f"{self.name}, line {line:,}: {why}")
                if parser.rows >= BLOCK_ROWS:
                    yield self._with_interactions(parser.take())
        if parser.rows:
            yield self._with_interactions(parser.take())

    def _with_interactions(self, examples: _native.Examples) -> _native.Examples:
        if not self._crossed:
            return examples
        try:
            return examples.crossed(self._crossed)
        except ValueError as error:
            raise DataError(f"{self.name}: in a part of {examples.rows:,} lines, {error}") from error

    def complain(self) -> None:
        """Print the message about the lines that were left out to stderr, if there were any."""
        if self.bad:
            print(self.complaint(), file=sys.stderr)

    def complaint(self) -> str:
        """Return a message about the lines that were left out; "" if there were none."""
        if not self.bad:
            return ""
        named = "; ".join(f"line {line:,}: {why}" for line, why in self.first_bad)
        return f"{self.name}: {self.bad:,} of {self.lines:,} lines left out: {named}"

    def _with_nearest(self, why: str) -> str:
        unknown = re.fullmatch(r"namespace '(.*)' is none of the fields", why)
        return why + nearest(unknown[1], self.fields) if unknown else why

    def _fresh(self) -> _native.ExampleParser:
        return _native.ExampleParser(self.format == "libffm", self.given or [], self.ignore)


class ExampleCache:
    """A file of parsed examples. A damaged block is refused before a model learns from it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path, "a file of parsed examples")
        self._fields: list[str] | None = None
        self._totals = (0, 0, 0, 0)
        with self._reading():
            self._version = FileVersion(pafs.LocalFileSystem(), str(self.path))
            settle([self._version])
            _native.ExampleReader(str(self.path))

    @staticmethod
    def parse(
        source: str | os.PathLike[str] | BinaryIO,
        path: str | os.PathLike[str],
        *,
        format: Format = "vw",
        fields: Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        interactions: Sequence[Sequence[str]] = (),
        strict: bool = False,
    ) -> ExampleCache:
        """Read text once and write the file; the arguments are those of `ExampleText`.

        Malformed lines are reported on stderr. Text without a single good line is refused, and then nothing is written.
        """
        text = ExampleText(
            source, format=format, fields=fields, ignore=ignore, interactions=interactions, strict=strict
        )
        with written_aside(local_path(path, "a file of parsed examples")) as aside:
            writer = _native.ExampleWriter(str(aside))
            rows = 0
            for examples in text:
                writer.put(examples, text.fields)
                rows += examples.rows
            if not rows:
                raise DataError(text.complaint() or f"{text.name} holds no examples")
            writer.close(text.lines, text.bad)
        text.complain()
        return ExampleCache(path)

    @property
    def fields(self) -> list[str]:
        self._read_through()
        assert self._fields is not None
        return self._fields

    @property
    def rows(self) -> int:
        self._read_through()
        return self._totals[0]

    @property
    def bad(self) -> int:
        """Number of lines of the text that were left out."""
        self._read_through()
        return self._totals[3]

    def blocks(self) -> Iterator[tuple[_native.Examples, list[str]]]:
        """Yield blocks of examples with the fields met so far.

        The next blocks are read and unpacked while the caller works on the last one.
        """
        unpackers = min(MOST_UNPACKERS, max(1, _native.usable_cores() - 1))
        with self._reading():
            self._version.check()
            reader = _native.ExampleReader(str(self.path))
            with ThreadPoolExecutor(1) as reading, ThreadPoolExecutor(unpackers) as unpacking:

                def read() -> tuple[Future[_native.Examples] | None, list[str]]:
                    try:
                        block = reader.read()
                    except _native.DamagedFile:
                        self._version.check()  # a change explains the damage
                        raise
                    self._version.check()
                    return unpacking.submit(block.unpack) if block else None, reader.fields

                coming = deque(reading.submit(read) for _ in range(unpackers))
                try:
                    while (found := result_of(coming.popleft()))[0] is not None:
                        coming.append(reading.submit(read))
                        yield result_of(found[0]), found[1]
                finally:
                    for future in coming:
                        future.cancel()
            self._fields, self._totals = reader.fields, reader.totals

    def __iter__(self) -> Iterator[_native.Examples]:
        for examples, _ in self.blocks():
            yield examples

    def _read_through(self) -> None:
        if self._fields is None:
            for _ in self.blocks():
                pass

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _native.DamagedFile as error:
            raise SourceError(f"cannot read {self.path}: {error}; parse the text files again") from error
        except OSError as error:
            raise SourceError(f"cannot read {self.path}: {error.strerror or error}") from error


def crossed_name(fields: Sequence[str]) -> str:
    return "*".join(fields)


def checked_interactions(given: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise PlanError(
            f"interactions= must be a list of lists of field names, such as [('user', 'ad')], got {given!r}"
        )
    for one in given:
        if isinstance(one, str) or not isinstance(one, Sequence):
            raise PlanError(f"an interaction must have two or more fields, such as ('user', 'ad'), got {one!r}")
    return [tuple(one) for one in given]


def crossings(given: list[str] | None, interactions: list[tuple[str, ...]]) -> list[tuple[list[int], int, int]]:
    """Return, for each interaction, the numbers of its fields, its own number, and the hash of its name."""
    if not interactions:
        return []
    if given is None:
        raise PlanError(
            "interactions= needs fields=, because the list of all fields must be known before interactions are added; pass "
            "fields=[…]"
        )
    for one in interactions:
        if len(one) < 2 or any(not isinstance(name, str) or name not in given for name in one):
            unknown = next((name for name in one if name not in given), None)
            raise PlanError(
                f"interactions= names {unknown!r}, which is not a field{nearest(str(unknown), given)}"
                if unknown is not None
                else f"an interaction must have two or more fields, got {one!r}"
            )
    every = names([*given, *map(crossed_name, interactions)])
    return [
        ([given.index(name) for name in one], len(given) + n, _native.salt(every[len(given) + n].encode()))
        for n, one in enumerate(interactions)
    ]


def names(given: Sequence[str]) -> list[str]:
    """Return field names after checking that there are 1 to 512 of them and that they are all different."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise PlanError(f"fields= must be a list of names, got {given!r}")
    found = list(given)
    if not all(isinstance(name, str) for name in found):
        raise PlanError(f"fields= must be a list of names, got {found!r}")
    if not 1 <= len(found) <= 512:
        raise PlanError(f"fields= must have 1 to 512 names, got {len(found):,}")
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise PlanError(f"two fields have the name {twice!r}; give each field its own name")
    long = next((name for name in found if len(name.encode()) > 1000), None)
    if long is not None:
        raise PlanError(f"the name of a field has at most 1,000 bytes, got {len(long.encode()):,}: {long[:40]!r}…")
    return found


def version_of(source: str | os.PathLike[str] | BinaryIO) -> FileVersion | None:
    """Return the version of a file as it is now; None for streams and pipes, which are read once."""
    if not isinstance(source, str | os.PathLike) or source == "-" or not Path(source).is_file():
        return None
    version = FileVersion(pafs.LocalFileSystem(), os.fspath(source))
    settle([version])
    return version


class _Watched(io.RawIOBase):
    """A file whose version is compared after every read, before anybody sees the bytes."""

    def __init__(self, version: FileVersion) -> None:
        self._version, self._raw = version, version.open()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = bytes(self._raw.read(None if size is None or size < 0 else size))
        self._version.check(self._raw)
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()


@contextlib.contextmanager
def opened(
    source: str | os.PathLike[str] | BinaryIO, version: FileVersion | None = None
) -> Iterator[BinaryIO | io.RawIOBase]:
    if not isinstance(source, str | os.PathLike):
        yield source
        return
    if source == "-":
        yield sys.stdin.buffer
        return
    refuse_url(source, "a text file of examples")
    path = os.fspath(source)
    codec = {".gz": "gzip", ".zst": "zstd"}.get(Path(path).suffix)
    try:
        with Path(path).open("rb") if version is None else _Watched(version) as file:
            yield pa.CompressedInputStream(file, codec) if codec else file
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error


def whole_lines(stream: BinaryIO | io.RawIOBase, name: str) -> Iterator[bytes]:
    """Yield the bytes of whole lines, some megabytes at a time. The last line need not end with a line break."""
    rest: list[bytes] = []
    held = 0
    while text := stream.read(READ):
        if not isinstance(text, bytes):
            raise PlanError(f"{name} returns {type(text).__name__}; expected bytes: open the file in binary mode")
        end = text.rfind(b"\n") + 1
        if end == 0:
            rest.append(text)
            held += len(text)
            if held > LONGEST:
                raise DataError(
                    f"{name}: a line is longer than {LONGEST:,} bytes; check that the file is text with one example per line"
                )
            continue
        yield b"".join([*rest, text[:end]])
        rest, held = ([text[end:]], len(text) - end) if end < len(text) else ([], 0)
    if held:
        yield b"".join(rest)
