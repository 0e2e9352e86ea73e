"""Manages a folder of published versions.

    published/
      CURRENT                 the version to serve, length and seal of the log up to it, and a signature of these if there is
                              a key (signed_statement.py); replaced by one rename
      log.jsonl               a line for each version, each sealed together with the seal before it
      versions/00000007.fbw   weight files, the last `keep` of them
      patches/00000007.patch  what turns version 6 into version 7
      FEATURES                where a plan is served with it: the fields that a model may have
      LOCK                    held by the one process that publishes

A version is published at the moment in which CURRENT is replaced. Log lines and files of a later version were left by a process
that died or by a full disk; the next `publish` removes them. Readers need no lock, because the file of a version does not change.
The log has the size and the checksum of each file, with which a copy is compared before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ctrbox.arguments.names import nearest
from ctrbox.columns.key_kinds import TOLD, checked_kinds, mismatch
from ctrbox.errors import CtrboxError, DataError, PlanError, SignatureError, SourceError, WriteError
from ctrbox.files.atomic import failure, locked, remove, written_aside
from ctrbox.files.untrusted_files import open_regular, read_regular
from ctrbox.files.urls import local_path, readable_url
from ctrbox.publish.chain_of_sealed_lines import opened_line, sealed_line
from ctrbox.publish.patch import apply, diff, read_facts
from ctrbox.publish.signed_statement import COVERED, FileFacts, Statement, Trust, claim_of
from ctrbox.publish.signing_keys import PrivateKey
from ctrbox.publish.stored_versions import MOST_LOG, MOST_SMALL, WHAT, StoredVersions
from ctrbox.publish.web_folder import WebFolder
from ctrbox.publish.weight_file import read_directory, read_weights
from ctrbox.publish.weights_of_models import DEEP_FFM, Model, pack

FEATURES = "FEATURES"
BLOCK = 4 << 20
POINTED = ("version", "log_bytes", "log_seal")  # what CURRENT says
_SHA256 = re.compile(r"[0-9a-f]{64}")


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


@dataclass(frozen=True)
class Update:
    """How a copy was updated: with ``patches`` patches, or with the whole file if 0. ``bytes``: number of bytes read for it."""

    version: Version
    patches: int
    bytes: int

    @property
    def how(self) -> str:
        if self.bytes == 0:
            return "nothing"
        return "whole file" if not self.patches else "patch" if self.patches == 1 else f"{self.patches} patches"


class Log(NamedTuple):
    """The versions up to the current one, the last seal, the length of the log up to it, and what is signed about them."""

    versions: list[Version]
    seal: str
    bytes: int
    signed: object = None  # the entry of CURRENT, None where there is none
    statement: Statement | None = None  # the one that was accepted; None without trust


class Published:
    """Numbered versions of one model in a folder, which may be on s3:// or hdfs://.

    The last ``keep`` weight files are kept whole; the log and all patches are always kept. ``sign_with``: a private key, or its
    file, with which every version is signed. ``trust``: the public keys whose signatures are accepted; by
    default the public key of ``sign_with``, and without ``sign_with`` every version is accepted, signed or not.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | StoredVersions,
        *,
        keep: int = 8,
        sign_with: PrivateKey | str | os.PathLike[str] | None = None,
        trust: Trust | None = None,
    ) -> None:
        if keep < 2:
            raise PlanError(
                f"keep= must be at least 2, got {keep}; keep= is the number of versions whose weight files are kept"
            )
        if not isinstance(folder, StoredVersions) and (url := readable_url(folder, WHAT)) is not None:
            folder = StoredVersions.open(url, signed=trust is not None)
        self.stored = folder if isinstance(folder, StoredVersions) else None
        self.folder, self.keep = folder.folder if isinstance(folder, StoredVersions) else Path(folder), keep
        self.key = sign_with if sign_with is None or isinstance(sign_with, PrivateKey) else PrivateKey.read(sign_with)
        self.trust = trust if self.key is None else (Trust([]) if trust is None else trust).also(self.key.public)

    @property
    def shown(self) -> str:
        """The path or the URL of the folder."""
        return str(self.folder) if self.stored is None else self.stored.shown

    # ---- reading

    def refresh(self) -> None:
        """Bring the local copy of a folder on S3 or HDFS up to date; a local folder always is."""
        if self.stored is not None:
            self.stored.refresh()

    def _fetched(self, version: Version, *, patch: bool = False) -> Path:
        """Return the path of a weight file or a patch; in a folder on S3 or HDFS it is downloaded now."""
        name = f"patches/{version.name}.patch" if patch else f"versions/{version.name}.fbw"
        if self.stored is not None:
            facts = (version.patch_bytes, version.patch_sha256) if patch else (version.bytes, version.sha256)
            self.stored.fetch(name, *facts)
        return self.folder / name

    @property
    def current(self) -> Version | None:
        versions = self.log()
        return versions[-1] if versions else None

    def log(self) -> list[Version]:
        """Return all versions, oldest first. A damaged log raises an error."""
        return self._log().versions

    def statement(self) -> Statement | None:
        """Return what the trusted keys signed about the current version; None without ``trust`` or without a version."""
        return self._log().statement

    def claimed(self) -> dict[str, str] | None:
        """Return the model and the key that the signature of the current version names, unchecked; None without a signature."""
        return claim_of(self._log().signed)

    def file(self, number: int | None = None) -> Path:
        """Return the path of a version's weight file. Default: the current version."""
        version = self._version(number)
        path = self._file_of(version)
        if self.trust is not None and (wrong := _wrong(path, version.bytes, version.sha256)):
            raise DataError(wrong[0])
        return path

    def _file_of(self, version: Version) -> Path:
        path = self._fetched(version)
        if not path.is_file():
            kept = sorted(int(p.stem) for p in (self.folder / "versions").glob("*.fbw"))
            kept = kept if self.stored is None else self.stored.kept()
            raise DataError(
                f"version {version.number} of {self.shown} is no longer kept; the folder still contains {_listed(kept)}"
            )
        return path

    def patch(self, number: int) -> Path:
        """Return the path of the patch that turns the previous version into this one."""
        return self._fetched(self._version(number), patch=True)

    def update(self, file: str | os.PathLike[str]) -> Version:
        """Bring a copy of a version up to date with the patches since; any other file is replaced by the whole current version.

        Each patch is applied completely or not at all, so the file is a complete version at any moment.
        """
        return self.updated(file).version

    def copied(self, file: str | os.PathLike[str], number: int | None = None) -> Version:
        """Copy the weight file of a version, by default the current one, after comparing it with the version list."""
        version = self._version(number)
        what = f"the file of version {version.number} of {self.shown}"
        _copied(self._file_of(version), local_path(file, "a copy of published weights"), version, what)
        return version

    def updated(self, file: str | os.PathLike[str], *, whole: bool = False) -> Update:
        """Do the same as `update`, and return how the copy was updated.

        Patches are used unless the whole file has fewer bytes, or ``whole`` is True. Every file is compared with the version list
        before it is used."""
        versions = self.log()
        if not versions:
            raise SourceError(f"{self.shown} holds no published version")
        place, last = local_path(file, "a copy of published weights"), versions[-1]
        met = _facts(place) if place.exists() else None
        at = next((v.number for v in reversed(versions) if (v.bytes, v.sha256) == met), None)
        since = versions[at:] if at is not None else []
        if at is None or whole or sum(v.patch_bytes for v in since) > last.bytes:
            _copied(self._file_of(last), place, last, f"the file of version {last.number} of {self.shown}")
            return Update(last, 0, last.bytes)
        patch = place.with_name(f".{place.name}.patch")
        try:
            for v in since:
                # Checked and applied as a copy, which nobody else can change between the two.
                source, what = (
                    self._fetched(v, patch=True),
                    f"the patch to version {v.number} of {self.shown}",
                )
                _copied(source, patch, v, what, patch=True)
                made = read_facts(patch).result_sha256
                if made != v.sha256:
                    raise DataError(
                        f"{what} would give a file with the checksum {made[:12]}…, expected {v.sha256[:12]}…"
                    )
                apply(place, patch, place)
        finally:
            patch.unlink(missing_ok=True)
        return Update(last, len(since), sum(v.patch_bytes for v in since))

    def verify(self, *, unsigned: bool = False) -> list[str]:
        """Check the log, the kept files and the patches against their checksums, and return one message per damaged one.

        ``unsigned``: accept a version without a signature, also with ``trust``.
        """
        try:
            if self.stored is not None:
                self.stored.fetch_all()
            log = self._log(unsigned=unsigned)
            if self.stored is not None:
                self._fetch_listed(log.versions)
            versions, wrong = log.versions, []
            met = None if log.statement is None else self._beside()
            if log.statement is not None and met is not None and log.statement.files != met:
                changed = [name for name in COVERED if log.statement.files.get(name) != met.get(name)]
                wrong.append(f"{', '.join(changed)} beside {self.shown} changed after the signature")
        except CtrboxError as error:
            return [str(error)]
        wrong += _refused(self._features)
        for n, v in enumerate(versions):
            path = self.folder / "versions" / f"{v.name}.fbw"
            if path.exists() or n + 1 == len(versions):
                wrong += _wrong(path, v.bytes, v.sha256) or _refused(partial(read_weights, path))
            if v.patch_bytes:
                path = self.folder / "patches" / f"{v.name}.patch"
                wrong += _wrong(path, v.patch_bytes, v.patch_sha256) or _refused(partial(read_facts, path))
        return wrong

    def _fetch_listed(self, versions: list[Version]) -> None:
        """Download the files of a plain folder on an HTTP server, which has no manifest: only the version list names them.

        If a file cannot be downloaded, it is missing afterwards.
        """
        for v in versions:
            for patch in (False, True) if v.patch_bytes else (False,):
                with contextlib.suppress(DataError):
                    self._fetched(v, patch=patch)

    # ---- publishing

    def publish(
        self, model: Model, *, note: str = "", decimals: tuple[int, int] | None = None, quantize: bool = True
    ) -> Version:
        """Publish a model (`publish.pack`) as the next version, whole or not at all."""
        return self._next(
            lambda place, base: pack(model, place, base=base, quantize=quantize, decimals=decimals), note=note
        )

    def rollback(self, number: int, *, note: str = "") -> Version:
        """Publish an older version again, as the next version."""
        version = self._version(number)
        source, what = self._file_of(version), f"the file of version {number} of {self.shown}"
        return self._next(lambda place, _: _copied(source, place, version, what), note=note, copy_of=number)

    def _next(self, write: Callable[[Path, Path | None], object], *, note: str, copy_of: int = 0) -> Version:
        with self._locked():
            log = self._log()
            versions = log.versions
            self._need_key(log)
            self._tidy(versions, log.bytes)
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
                    _now(),
                )
                self._commit(made, log)
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

    def need_key(self) -> None:
        """Refuse to publish unsigned versions after signed ones. A caller that publishes much later calls this at its start."""
        self._need_key(self._log())

    def _need_key(self, log: Log) -> None:
        if log.signed is not None and self.key is None:
            raise PlanError(
                f"the versions of {self.shown} are signed, and its servers would refuse an unsigned one; give the private "
                "key: --sign-with KEY, or sign_with="
            )

    def serves(self, features: Sequence[str], keys: Mapping[str, str] | None = None) -> None:
        """From now on, accept only models whose fields are among these, which are the fields of the served plan.

        ``keys``: what the keys of the fields are hashes of (`ctrbox.columns.key_kinds`), by field.
        """
        with written_aside(self.folder / FEATURES) as aside:
            aside.write_bytes(sealed_line("", {"features": list(features), "keys": dict(keys or {})})[0])
        if self.stored is not None:
            self.stored.push()

    def _features(self) -> dict[str, str] | None:
        """Return the features of the plan, each with what its keys are hashes of; "" if this is not known."""
        path = self.folder / FEATURES
        try:
            told = opened_line("", read_regular(path, MOST_SMALL), path)[0]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
        found, keys = told.get("features"), told.get("keys", {})
        if not isinstance(found, list) or not isinstance(keys, dict):
            raise DataError(f"{path} is damaged: it does not list the features of the plan; restore it from a copy")
        return {str(name): kind if (kind := keys.get(name)) in TOLD else "" for name in found}

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
        fields = found.about.get("names", [])
        try:
            kinds = dict(zip(fields, checked_kinds(found.about.get("keys"), fields), strict=True))
        except ValueError as error:
            raise DataError(f"cannot publish {place.name}: {error}") from None
        if told := mismatch(kinds, known):
            raise DataError(
                f"the model does not fit the plan that {self.shown.rpartition('/')[0]} is served with: {told}; make "
                "another folder for it: ctrbox publish create"
            )

    def _is_current(self, number: int) -> bool:
        with contextlib.suppress(CtrboxError):
            return (found := self.current) is not None and found.number == number
        return False

    def _commit(self, version: Version, log: Log) -> None:
        line, seal = sealed_line(log.seal, asdict(version))
        path = self.folder / "log.jsonl"
        try:
            with path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise failure(error, path, path) from error
        self._point(version.number, log.bytes + len(line), seal, log.statement)

    def _point(self, version: int, log_bytes: int, seal: str, before: Statement | None) -> None:
        """Replace CURRENT, signed if there is a key. ``before``: an earlier statement, whose model and files are kept."""
        facts: dict[str, Any] = {"version": version, "log_bytes": log_bytes, "log_seal": seal}
        if self.key is not None:
            model = before.model if before is not None else secrets.token_hex(16)
            files = before.files if before is not None else self._beside() or {}
            facts["signed"] = Statement(model, version, log_bytes, seal, files, _now()).signed_by(self.key)
        with written_aside(self.folder / "CURRENT") as aside:
            aside.write_bytes(sealed_line("", facts)[0])

    def _beside(self) -> dict[str, FileFacts] | None:
        """Return the files of a served model that are beside its versions and that a signature also covers.

        Return None for a URL that was opened without the folder above it.
        """
        above = self.folder.parent
        if self.stored is not None:
            if not self.stored.below:
                return None
            if isinstance(self.stored.stored, WebFolder):
                self.stored.stored.find(COVERED)
            self.stored.stored.pull(lambda name: name in COVERED)
        elif not (above / COVERED[0]).exists():
            return {}
        return {name: FileFacts(*_facts(above / name)) for name in COVERED if (above / name).exists()}

    def sign(self) -> Version:
        """Sign the current version as it is, with the private key of ``sign_with``.

        Use it for a folder whose versions were not signed before, or to change to another key. In the second case, ``trust`` must
        contain the key that signed the version.
        """
        if self.key is None:
            raise PlanError(f"signing {self.shown} needs the private key; give it: --sign-with KEY, or sign_with=")
        with self._locked():
            log = self._log(unsigned=True)
            if not log.versions:
                raise SourceError(f"{self.shown} holds no published version")
            for wrong in self.verify(unsigned=True):
                raise DataError(f"{self.shown} cannot be signed, because it is damaged: {wrong}")
            self._point(log.versions[-1].number, log.bytes, log.seal, log.statement)
            if self.stored is not None:
                self.stored.push()
            return log.versions[-1]

    def _tidy(self, versions: list[Version], log_bytes: int) -> None:
        """Remove log lines and files of versions that were never published."""
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

    def _log(self, *, unsigned: bool = False) -> Log:
        """Read CURRENT, and the log up to the version that it names, once. ``unsigned``: as for `verify`."""
        self.refresh()
        pointer = self.folder / "CURRENT"
        try:
            facts = opened_line("", read_regular(pointer, MOST_SMALL), pointer)[0]
            signed = facts.pop("signed", None)
            statement = None
            if self.trust is not None and not (unsigned and signed is None):
                statement = self.trust.accept(signed, self.shown)
                if (statement.version, statement.log_bytes, statement.log_seal) != tuple(map(facts.get, POINTED)):
                    raise SignatureError(
                        f"the signature of {self.shown} is for another version than the one that CURRENT names"
                    )
            with open_regular(self.folder / "log.jsonl") as file:
                size = os.fstat(file.fileno()).st_size
                if set(facts) != set(POINTED) or not isinstance(facts["log_bytes"], int):
                    raise DataError(
                        f"{pointer} is damaged, or is not the file CURRENT of a folder of published versions; restore it "
                        "from a copy"
                    )
                if not 0 < facts["log_bytes"] <= min(size, MOST_LOG):
                    raise DataError(
                        f"{self.shown}/log.jsonl was truncated: it has {size:,} bytes, expected {facts['log_bytes']:,}; "
                        "restore the folder from a copy"
                    )
                text = file.read(facts["log_bytes"])
        except FileNotFoundError as error:
            if Path(error.filename) == pointer and not any((self.folder / "patches").glob("*")):
                if self.trust is not None and self.trust.version:
                    raise SignatureError(
                        f"{self.shown} holds no version, but version {self.trust.version} was accepted before"
                    ) from None
                return Log([], "", 0)
            raise SourceError(
                f"{self.shown} is damaged: {Path(error.filename).name} is missing; restore the folder from a copy"
            ) from None
        except OSError as error:
            raise SourceError(f"cannot read {self.shown}: {error.strerror or error}") from error
        seal = ""
        versions: list[Version] = []
        for line in text.splitlines():
            plain, seal = opened_line(seal, line, self.folder / "log.jsonl")
            if not _is_version(plain, len(versions) + 1):
                raise DataError(f"{self.shown}/log.jsonl is damaged at version {len(versions) + 1}")
            versions.append(Version(**plain))
        if seal != facts["log_seal"] or len(versions) != facts["version"]:
            raise DataError(
                f"{self.shown} is damaged: CURRENT and log.jsonl do not belong together; restore the folder from a copy"
            )
        if self.trust is not None and statement is not None:
            self.trust.remember(statement)
        return Log(versions, seal, facts["log_bytes"], signed, statement)


def _is_version(plain: Mapping[str, Any], number: int) -> bool:
    """Return whether a line of the log describes this version, with sizes and checksums that can be relied on."""
    if set(plain) != {f.name for f in fields(Version)} or plain["number"] != number:
        return False
    sizes = [plain[name] for name in ("bytes", "patch_bytes", "copy_of")]
    texts = [plain[name] for name in ("kind", "sha256", "patch_sha256", "note", "time")]
    if not all(type(size) is int and size >= 0 for size in sizes) or not all(isinstance(text, str) for text in texts):
        return False
    sums = [plain["sha256"]] if not plain["patch_bytes"] else [plain["sha256"], plain["patch_sha256"]]
    return all(_SHA256.fullmatch(one) for one in sums)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _copied(source: Path, place: Path, version: Version, what: str, *, patch: bool = False) -> None:
    """Copy the weight file or the patch of a version, if it is what the version list says. ``what``: the file, in words."""
    size, sha256 = (version.patch_bytes, version.patch_sha256) if patch else (version.bytes, version.sha256)
    digest, met = hashlib.sha256(), 0
    with written_aside(place) as aside:
        try:
            given = open_regular(source, follow=True)
        except OSError as error:
            raise SourceError(f"cannot read {source}, {what}: {error.strerror or error}") from error
        with given, aside.open("wb") as file:
            while met <= size and (block := given.read(min(BLOCK, size + 1 - met))):
                digest.update(block)
                file.write(block)
                met += len(block)
        if (met, digest.hexdigest()) != (size, sha256):
            wrong = f"it has {'more than ' if met > size else ''}{min(met, size):,} bytes, expected {size:,} bytes"
            raise DataError(
                f"{what} is damaged: {wrong if met != size else 'its checksum differs from that in the log'}"
            )


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
        else [
            f"{path} is damaged: "
            + (
                f"it has {met[0]:,} bytes, expected {size:,}"
                if met[0] != size
                else "its checksum differs from that in the log"
            )
        ]
    )


def _refused(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except CtrboxError as error:
        return [str(error)]
    return []


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
