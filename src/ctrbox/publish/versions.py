"""Manages a folder of published versions.

    published/
      CURRENT                 the version to serve, bytes and seal of the log up to it; replaced by one rename
      log.jsonl               a line for each version, each sealed together with the seal before it
      versions/00000007.fbw   weight files, the last `keep` of them
      patches/00000007.patch  what turns version 6 into version 7
      FEATURES                where a plan is served with it: the fields that a model may have
      LOCK                    held by the one process that publishes

CURRENT is the moment at which a version is published. What lies behind it (a log line, files of a higher number) was left by a
process that died or a disk that was full; the next `publish` removes it. Readers need no lock: a version's file does not change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.errors import CtrboxError, DataError, PlanError, SourceError, WriteError
from ctrbox.files.atomic import failure, locked, remove, written_aside
from ctrbox.files.regular import open_regular, read_regular
from ctrbox.files.urls import local_path, stored_url
from ctrbox.publish.patch import apply, diff, read_facts
from ctrbox.publish.sources import DEEP_FFM, Model, pack
from ctrbox.publish.stored_versions import WHAT, StoredVersions
from ctrbox.publish.weights import read_directory, read_weights

MOST_LOG = 1 << 30
MOST_SMALL = 64 << 20  # bytes of CURRENT and of FEATURES
FEATURES = "FEATURES"


@dataclass(frozen=True)
class Version:
    number: int
    kind: str
    bytes: int
    sha256: str
    patch_bytes: int  # 0: the first one has no patch
    patch_sha256: str
    copy_of: int  # of a rollback: the version published again
    note: str
    time: str  # UTC

    @property
    def name(self) -> str:
        return f"{self.number:08}"


class Published:
    """Numbered versions of one model in a folder, which may be on s3:// or hdfs://.

    The last ``keep`` weight files are kept whole; the log and all patches are always kept.
    """

    def __init__(self, folder: str | os.PathLike[str] | StoredVersions, *, keep: int = 8) -> None:
        if keep < 2:
            raise PlanError(f"keep= must be at least 2, got {keep}")
        if not isinstance(folder, StoredVersions) and (url := stored_url(folder, WHAT)) is not None:
            folder = StoredVersions.open(url)
        self.stored = folder if isinstance(folder, StoredVersions) else None
        self.folder, self.keep = folder.folder if isinstance(folder, StoredVersions) else Path(folder), keep

    @property
    def shown(self) -> str:
        """The path or the URL of the folder."""
        return str(self.folder) if self.stored is None else self.stored.shown

    # ---- reading

    def refresh(self) -> None:
        """Bring the local copy of a folder on S3 or HDFS up to date; a local folder always is."""
        if self.stored is not None:
            self.stored.refresh()

    def _fetched(self, kind: str, name: str) -> Path:
        """Return the path of a weight file or a patch; in a folder on S3 or HDFS it is downloaded now."""
        if self.stored is not None:
            self.stored.fetch(f"{kind}/{name}")
        return self.folder / kind / name

    @property
    def current(self) -> Version | None:
        versions = self.log()
        return versions[-1] if versions else None

    def log(self) -> list[Version]:
        """Return all versions, oldest first. A damaged log raises an error."""
        return self._log()[0]

    def file(self, number: int | None = None) -> Path:
        """Return the path of a version's weight file. Default: the current version."""
        version = self._version(number)
        path = self._fetched("versions", f"{version.name}.fbw")
        if not path.is_file():
            kept = sorted(int(p.stem) for p in (self.folder / "versions").glob("*.fbw"))
            kept = kept if self.stored is None else self.stored.kept()
            raise DataError(f"version {version.number} of {self.shown} is no longer kept; kept: {_listed(kept)}")
        return path

    def patch(self, number: int) -> Path:
        """Return the path of the patch that turns the previous version into this one."""
        return self._fetched("patches", f"{self._version(number).name}.patch")

    def update(self, file: str | os.PathLike[str]) -> Version:
        """Bring a copy of some version up to date by the patches since; a file that is none becomes the current version whole.

        Each step is whole or not at all, and so is the file at any moment.
        """
        versions = self.log()
        if not versions:
            raise SourceError(f"{self.shown} holds no published version")
        place = local_path(file, "a copy of published weights")
        met = _facts(place) if place.exists() else None
        at = next((v.number for v in reversed(versions) if (v.bytes, v.sha256) == met), None)
        since = versions[at:] if at is not None else []
        if at is None or sum(v.patch_bytes for v in since) > versions[-1].bytes:
            _copied(self.file(), place)
        else:
            for v in since:
                apply(place, self._fetched("patches", f"{v.name}.patch"), place)
        return versions[-1]

    def verify(self) -> list[str]:
        """Check the log, the kept files and the patches against their checksums, and return one message per damaged one."""
        try:
            if self.stored is not None:
                self.stored.fetch_all()
            versions = self.log()
        except CtrboxError as error:
            return [str(error)]
        wrong = _refused(self._features)
        for n, v in enumerate(versions):
            path = self.folder / "versions" / f"{v.name}.fbw"
            if path.exists() or n + 1 == len(versions):
                wrong += _wrong(path, v.bytes, v.sha256) or _refused(partial(read_weights, path))
            if v.patch_bytes:
                path = self.folder / "patches" / f"{v.name}.patch"
                wrong += _wrong(path, v.patch_bytes, v.patch_sha256) or _refused(partial(read_facts, path))
        return wrong

    # ---- publishing

    def publish(
        self, model: Model, *, note: str = "", decimals: tuple[int, int] | None = None, quantise: bool = True
    ) -> Version:
        """Publish a model (`publish.pack`) as the next version, whole or not at all."""
        return self._next(
            lambda place, base: pack(model, place, base=base, quantise=quantise, decimals=decimals), note=note
        )

    def rollback(self, number: int, *, note: str = "") -> Version:
        """Publish an older version again, as the next version."""
        source = self.file(number)
        return self._next(lambda place, _: _copied(source, place), note=note, copy_of=number)

    def _next(self, write: Callable[[Path, Path | None], object], *, note: str, copy_of: int = 0) -> Version:
        with self._locked():
            versions, seal, log_bytes = self._log()
            self._tidy(versions, log_bytes)
            before = versions[-1] if versions else None
            number = before.number + 1 if before else 1
            place = self.folder / "versions" / f"{number:08}.fbw"
            patch = self.folder / "patches" / f"{number:08}.patch"
            try:
                base = self.file(before.number) if before else None
                write(place, base)
                kind = read_directory(place).kind
                if before is not None and kind != before.kind:
                    raise DataError(
                        f"{self.shown} holds versions of kind {before.kind!r}, but this model is of kind {kind!r}; "
                        f"publish it to another folder"
                    )
                self._check_fields(place)
                if base is not None:
                    diff(base, place, patch)
                made = Version(
                    number,
                    kind,
                    *_facts(place),
                    *(_facts(patch) if base is not None else (0, "")),
                    copy_of,
                    note,
                    datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                )
                self._commit(made, seal, log_bytes)
            except BaseException:
                if not self._is_current(number):  # else CURRENT was renamed, and only its folder could not be synced
                    remove(place)
                    remove(patch)
                raise
            for old in versions[: max(0, len(versions) + 1 - self.keep)]:
                remove(self.folder / "versions" / f"{old.name}.fbw")
                if self.stored is not None:
                    self.stored.drop(f"versions/{old.name}.fbw")
            if self.stored is not None:
                self.stored.push()
            return made

    def serves(self, features: Sequence[str]) -> None:
        """Accept only models whose fields are among these from now on: the fields of the plan that a server has."""
        with written_aside(self.folder / FEATURES) as aside:
            aside.write_bytes(_sealed("", {"features": list(features)})[0])
        if self.stored is not None:
            self.stored.push()

    def _features(self) -> list[str] | None:
        path = self.folder / FEATURES
        try:
            found = _opened("", read_regular(path, MOST_SMALL), path)[0].get("features")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
        if not isinstance(found, list):
            raise DataError(f"{path} does not list the features")
        return found

    def _check_fields(self, place: Path) -> None:
        known, found = self._features(), read_directory(place)
        if known is None or found.kind != DEEP_FFM:
            return
        for name in found.about.get("names", []):
            if name not in known:
                raise DataError(
                    f"the model's field {name!r} is not a feature of the plan that {self.shown.rpartition('/')[0]} is served with"
                    f"{nearest(str(name), known)}; make another folder for it: ctrbox publish create"
                )

    def _is_current(self, number: int) -> bool:
        with contextlib.suppress(CtrboxError):
            return (found := self.current) is not None and found.number == number
        return False

    def _commit(self, version: Version, seal: str, log_bytes: int) -> None:
        line, seal = _sealed(seal, asdict(version))
        path = self.folder / "log.jsonl"
        try:
            with path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise failure(error, path, path) from error
        facts = {"version": version.number, "log_bytes": log_bytes + len(line), "log_seal": seal}
        with written_aside(self.folder / "CURRENT") as aside:
            aside.write_bytes(_sealed("", facts)[0])

    def _tidy(self, versions: list[Version], log_bytes: int) -> None:
        """Remove what was never published."""
        last = versions[-1].number if versions else 0
        with contextlib.suppress(FileNotFoundError):
            if (self.folder / "log.jsonl").stat().st_size > log_bytes:
                os.truncate(self.folder / "log.jsonl", log_bytes)
        for path in [*(self.folder / "versions").glob("*.fbw"), *(self.folder / "patches").glob("*.patch")]:
            if path.stem.isdigit() and int(path.stem) > last:
                remove(path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self.stored is not None:
            self.stored.stored.claim()
        with locked(self.folder, f"publish to {self.shown}"):
            try:
                for name in ("versions", "patches"):
                    (self.folder / name).mkdir(exist_ok=True)
            except OSError as error:
                raise WriteError(f"cannot publish to {self.shown}: {error.strerror or error}") from error
            yield

    # ---- parts

    def _version(self, number: int | None) -> Version:
        versions = self.log()
        if not versions:
            raise SourceError(f"{self.shown} holds no published version")
        number = versions[-1].number if number is None else number
        if not 1 <= number <= len(versions):
            raise DataError(f"{self.shown} has no version {number}; its versions are 1 to {len(versions)}")
        return versions[number - 1]

    def _log(self) -> tuple[list[Version], str, int]:
        """Versions, the last seal, and bytes of the log that count."""
        self.refresh()
        pointer = self.folder / "CURRENT"
        try:
            facts = _opened("", read_regular(pointer, MOST_SMALL), pointer)[0]
            with open_regular(self.folder / "log.jsonl") as file:
                size = os.fstat(file.fileno()).st_size
                if set(facts) != {"version", "log_bytes", "log_seal"} or not isinstance(facts["log_bytes"], int):
                    raise DataError(f"{pointer} is not the CURRENT file of a published folder")
                if not 0 < facts["log_bytes"] <= min(size, MOST_LOG):
                    raise DataError(
                        f"{self.shown}/log.jsonl was truncated: it has {size:,} bytes, expected {facts['log_bytes']:,}"
                    )
                text = file.read(facts["log_bytes"])
        except FileNotFoundError as error:
            if Path(error.filename) == pointer and not any((self.folder / "patches").glob("*")):
                return [], "", 0
            raise SourceError(f"{self.shown} is damaged: {Path(error.filename).name} is missing") from None
        except OSError as error:
            raise SourceError(f"cannot read {self.shown}: {error.strerror or error}") from error
        seal = ""
        versions: list[Version] = []
        for line in text.splitlines():
            plain, seal = _opened(seal, line, self.folder / "log.jsonl")
            if set(plain) != {f.name for f in fields(Version)} or plain["number"] != len(versions) + 1:
                raise DataError(f"{self.shown}/log.jsonl is damaged at version {len(versions) + 1}")
            versions.append(Version(**plain))
        if seal != facts["log_seal"] or len(versions) != facts["version"]:
            raise DataError(f"{self.shown} is damaged: CURRENT and log.jsonl do not belong together")
        return versions, seal, facts["log_bytes"]


def _sealed(before: str, facts: dict[str, Any]) -> tuple[bytes, str]:
    seal = _seal(before, facts)
    return json.dumps({**facts, "seal": seal}).encode() + b"\n", seal


def _opened(before: str, line: bytes, path: Path) -> tuple[dict[str, Any], str]:
    try:
        facts = json.loads(line)
        seal = facts.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        seal = None
    if seal is None or seal != _seal(before, facts):
        raise DataError(f"{path} is damaged: a checksum does not match")
    return facts, seal


def _seal(before: str, facts: dict[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def _copied(source: Path, place: Path) -> None:
    with written_aside(place) as aside:
        shutil.copyfile(source, aside)


def _facts(path: Path) -> tuple[int, str]:
    with open_regular(path, follow=True) as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _wrong(path: Path, size: int, sha256: str) -> list[str]:
    try:
        met = _facts(path)
    except DataError as error:
        return [str(error)]
    except OSError as error:
        return [f"cannot read {path}: {error.strerror or error}"]
    return (
        []
        if met == (size, sha256)
        else [f"{path} is damaged: {met[0]:,} bytes, expected {size:,} and another checksum"]
    )


def _refused(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except CtrboxError as error:
        return [str(error)]
    return []


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
