"""Defines the signed statement of a published version, and which statements a reader with public keys accepts.

The statement stands in CURRENT, which is replaced by one rename, so that a version and its signature appear together:

    {"version": 7, "log_bytes": …, "log_seal": …, "signed": {"key": id, "statement": text, "signature": 128 digits}, "seal": …}

    text = {"files": {"plan.ctr": {"bytes": …, "sha256": …}, …}, "format": 1, "log_bytes": …, "log_seal": …,
            "model": 32 digits, "time": …, "version": 7}

The signature is Ed25519 over a line that says what is signed, followed by the text, byte for byte. What it covers:

    the version list       `log_seal` chains all lines of log.jsonl by SHA-256; each holds size and SHA-256 of a weight file and
                           of a patch
    the version number     a rollback is a new version, so a number never falls: a lower one than before is a replay
    the model's identity   drawn at random when a model is signed for the first time, and the same in all its versions
    `files`                what lies beside the versions and is loaded with them: serve.json, plan.ctr, log.arrow

`Trust` holds the public keys, and remembers the highest version that it accepted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from ctrbox.errors import DataError, PlanError, SignatureError
from ctrbox.files.atomic import written_aside
from ctrbox.files.sealed_json import sealed, unsealed
from ctrbox.files.untrusted_files import read_regular
from ctrbox.files.urls import local_path
from ctrbox.publish.signing_keys import KEY_ID, PrivateKey, PublicKey

COVERED = (
    "serve.json",
    "plan.ctr",
    "log.arrow",
)  # files of a served model beside its versions, none of which ever changes
SIGNED = b"ctrbox published version 1\n"
FORMAT = 1
MOST_STATEMENT = 1 << 16
MOST_BYTES = 1 << 50  # of one file
MODEL_ID = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


@dataclass(frozen=True)
class FileFacts:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Statement:
    """The facts that a publisher signs about a version and all files that are loaded with it."""

    model: str
    version: int
    log_bytes: int
    log_seal: str
    files: Mapping[str, FileFacts]
    time: str  # UTC

    def signed_by(self, key: PrivateKey) -> dict[str, str]:
        """Return the entry ``signed`` of CURRENT."""
        facts = {**asdict(self), "files": {name: asdict(f) for name, f in self.files.items()}, "format": FORMAT}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return {"key": key.id, "statement": text, "signature": key.sign(SIGNED + text.encode()).hex()}


def opened(signed: object, keys: Mapping[str, PublicKey], shown: str) -> Statement:
    """Return the statement in the entry ``signed`` of CURRENT, if one of the keys made its signature.

    ``signed``: any JSON value, as CURRENT has it; None for a version without a signature. The signature is checked before
    the statement is read.
    """
    if not keys:
        raise PlanError("no public key was given to check the signature; give at least one")
    known = ", ".join(sorted(keys))
    if signed is None:
        raise SignatureError(
            f"{shown} is not signed; expected a signature by the key {known}. Its publisher can sign it: ctrbox publish sign"
        )
    if not isinstance(signed, dict) or set(signed) != {"key", "statement", "signature"}:
        raise SignatureError(
            f"{shown} has a malformed signature; expected key, statement and signature; its publisher can sign it again: "
            "ctrbox publish sign"
        )
    key_id, text, signature = signed["key"], signed["statement"], signed["signature"]
    if not (
        isinstance(key_id, str) and KEY_ID.fullmatch(key_id) and isinstance(text, str) and len(text) <= MOST_STATEMENT
    ):
        raise SignatureError(
            f"{shown} has a malformed signature: its key id or its statement is not valid; its publisher can sign it again: "
            "ctrbox publish sign"
        )
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
        raise SignatureError(
            f"{shown} has a malformed signature; expected 128 hexadecimal digits; its publisher can sign it again: ctrbox "
            "publish sign"
        )
    key = keys.get(key_id)
    if key is None:
        raise SignatureError(f"{shown} is signed by the key {key_id}, which is not trusted here; trusted: {known}")
    if not key.verifies(bytes.fromhex(signature), SIGNED + text.encode("utf-8", "surrogatepass")):
        raise SignatureError(
            f"{shown} was changed after it was signed: the signature by the key {key_id} does not match"
        )
    return _statement(text, shown)


def claim_of(signed: object) -> dict[str, str] | None:
    """Return the model and the key that the entry ``signed`` names, without checking the signature; None if it names none."""
    with contextlib.suppress(KeyError, TypeError, ValueError, RecursionError):
        key, model = signed["key"], json.loads(signed["statement"])["model"]  # type: ignore[index]
        if _is(KEY_ID, key) and _is(MODEL_ID, model):
            return {"model": model, "key": key}
    return None


def _statement(text: str, shown: str) -> Statement:
    """Read a statement. Its sizes and names are checked even though the statement is signed."""
    wrong = SignatureError(
        f"{shown} has a signed statement that this version of CTRBox cannot read; use the version that signed it"
    )
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(facts, dict) or set(facts) != {
        "format", "model", "version", "log_bytes", "log_seal", "files", "time"
    }:  # fmt: skip
        raise wrong
    if facts.pop("format") != FORMAT or not isinstance(facts["files"], dict):
        raise wrong
    files = {}
    for name, entry in facts.pop("files").items():
        if name not in COVERED or not isinstance(entry, dict) or set(entry) != {"bytes", "sha256"}:
            raise wrong
        if not _is_size(entry["bytes"]) or not _is(_SHA256, entry["sha256"]):
            raise wrong
        files[name] = FileFacts(**entry)
    good = (
        _is(MODEL_ID, facts["model"])
        and _is_size(facts["version"])
        and facts["version"] > 0
        and _is_size(facts["log_bytes"])
        and _is(_SHA256, facts["log_seal"])
        and _is(_TIME, facts["time"])
    )
    if not good:
        raise wrong
    return Statement(files=files, **facts)


def _is(form: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_BYTES


class Trust:
    """The public keys of publishers, and the newest version that was accepted from them.

    ``keys``: public keys or their files; several while a publisher changes from one to another. ``model_id``: the identity that a
    model must have; by default the first one that is met. ``memory``: a file that keeps identity and highest version, so that
    after a restart an older version is refused too.
    """

    def __init__(
        self,
        keys: Iterable[PublicKey | str | os.PathLike[str]],
        *,
        model_id: str = "",
        memory: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(keys, str | os.PathLike):
            keys = [keys]
        found = [key if isinstance(key, PublicKey) else PublicKey.read(key) for key in keys]
        self.keys = {key.id: key for key in found}
        if model_id and not MODEL_ID.fullmatch(model_id):
            raise PlanError(
                f"a model id has 32 hexadecimal digits, got {model_id[:80]!r}; `ctrbox publish log` shows it"
            )
        self.model_id = model_id
        self.memory = None if memory is None else local_path(memory, "a trust file")
        self.model, self.version, self.log_seal = self._remembered()
        if model_id and self.model and self.model != model_id:
            raise PlanError(
                f"{memory} says that this server trusts the model {self.model}, but the model {model_id} was requested; use "
                "another trust file for it"
            )

    def also(self, key: PublicKey) -> Trust:
        """Trust another key as well."""
        self.keys[key.id] = key
        return self

    def accept(self, signed: object, shown: str) -> Statement:
        """Return the signed statement; raise a `SignatureError` if it is not trusted, of another model, or older than before."""
        found = opened(signed, self.keys, shown)
        expected = self.model_id or self.model
        if expected and found.model != expected:
            raise SignatureError(f"{shown} is signed for another model, {found.model}; expected the model {expected}")
        if found.version < self.version:
            raise SignatureError(
                f"{shown} is version {found.version}, older than version {self.version}, which was accepted before; to go "
                "back to old weights, publish them as a new version"
            )
        if found.version == self.version and found.log_seal != self.log_seal:
            raise SignatureError(
                f"{shown} is version {found.version} with other contents than those that were accepted before; ask its "
                "publisher"
            )
        return found

    def remember(self, accepted: Statement) -> None:
        """Remember an accepted version, so that older ones are refused from now on."""
        if (accepted.model, accepted.version) == (self.model, self.version):
            return
        if self.memory is not None:
            facts = {"model": accepted.model, "version": accepted.version, "log_seal": accepted.log_seal}
            with written_aside(self.memory) as aside:
                aside.write_text(sealed(facts), encoding="ascii")
        self.model, self.version, self.log_seal = accepted.model, accepted.version, accepted.log_seal

    def _remembered(self) -> tuple[str, int, str]:
        if self.memory is None:
            return "", 0, ""
        try:
            found = unsealed(read_regular(self.memory, 4096), str(self.memory), "trust file")
        except FileNotFoundError:
            return "", 0, ""
        except OSError as error:
            raise DataError(f"cannot read the trust file {self.memory}: {error.strerror or error}") from error
        model, version, seal = found.get("model"), found.get("version"), found.get("log_seal")
        if not _is(MODEL_ID, model) or not _is_size(version) or not _is(_SHA256, seal):
            raise DataError(f"{self.memory} is not a trust file; remove it, and the next signed version is trusted")
        return str(model), int(version or 0), str(seal)
