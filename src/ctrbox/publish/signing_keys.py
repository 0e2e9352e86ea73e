"""Makes, reads and writes the Ed25519 key files with which published models are signed and checked.

    model.key       {"format": 1, "kind": "ctrbox private key", "algorithm": "Ed25519", "id": …, "key": …, "seal": …}
    model.key.pub   the same with "ctrbox public key"

``id`` is the first 16 hexadecimal digits of the SHA-256 of the public key; a signature names it, so that a server can hold the
old and the new key while a publisher changes from one to the other. ``key`` is 32 bytes in hexadecimal. A private key file is
refused if anybody but its owner can read it, and its contents appear in no message and no `repr`.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ctrbox.errors import DataError, PlanError, SourceError, WriteError
from ctrbox.files.atomic import failure, remove, synced
from ctrbox.files.sealed_json import sealed, unsealed
from ctrbox.files.untrusted_files import open_regular
from ctrbox.files.urls import local_path

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MOST_KEY = 4096  # bytes of a key file; ours have about 250
PRIVATE, PUBLIC = "private key", "public key"
KEY_ID = re.compile(r"[0-9a-f]{16}")
_KEY = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"format", "kind", "algorithm", "id", "key"}


@dataclass(frozen=True)
class PublicKey:
    """A key that checks signatures. ``raw``: its 32 bytes."""

    raw: bytes

    @staticmethod
    def read(path: str | os.PathLike[str]) -> PublicKey:
        """Read a public key file; a file that other users can change is refused."""
        raw, key_id = _read(local_path(path, "a public key file"), PUBLIC, stat.S_IWOTH)
        return _belonging(PublicKey(raw), key_id, path)

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Return whether the private key of this public key made the signature of exactly this message."""
        from cryptography.exceptions import InvalidSignature

        try:
            _library().Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class PrivateKey:
    """A key that signs. It shows its id alone, never its contents."""

    def __init__(self, raw: bytes) -> None:
        self._key: Ed25519PrivateKey = _library().Ed25519PrivateKey.from_private_bytes(raw)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"PrivateKey(id={self.id!r})"

    @staticmethod
    def read(path: str | os.PathLike[str]) -> PrivateKey:
        """Read a private key file; a file that anybody but its owner can read or change is refused."""
        raw, key_id = _read(local_path(path, "a private key file"), PRIVATE, stat.S_IRWXG | stat.S_IRWXO)
        return _belonging(PrivateKey(raw), key_id, path)

    @property
    def id(self) -> str:
        return self.public.id

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes."""
        return bytes(self._key.sign(message))


K = TypeVar("K", PublicKey, PrivateKey)


def keygen(path: str | os.PathLike[str]) -> PublicKey:
    """Make a new key pair: the private key in ``path``, which its owner alone can read, the public key in ``path``.pub.

    A file that exists is never replaced.
    """
    place = local_path(path, "a private key file")
    public = place.with_name(f"{place.name}.pub")
    for one in (place, public):
        if os.path.lexists(one):
            raise WriteError(
                f"{one} exists already and is not replaced, because a lost private key cannot be restored; choose another name"
            )
    raw = _library().Ed25519PrivateKey.generate().private_bytes_raw()
    key = PrivateKey(raw)
    _write(public, PUBLIC, key.id, key.public.raw, 0o644)
    try:
        _write(place, PRIVATE, key.id, raw, 0o600)
    except BaseException:
        remove(public)
        raise
    return key.public


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise PlanError("signatures need cryptography, which is not installed: pip install 'ctrbox[sign]'") from None
    return ed25519


def _belonging(key: K, key_id: str, path: str | os.PathLike[str]) -> K:
    if key.id != key_id:
        raise DataError(f"{path} is damaged: its id does not belong to its key; restore it from a copy")
    return key


def _read(path: Path, what: str, forbidden: int) -> tuple[bytes, str]:
    """Return the 32 bytes and the id of a key file. ``forbidden``: bits of the file's mode that must not be set."""
    try:
        with open_regular(path, follow=True) as file:  # a secret that Kubernetes mounts is a symbolic link
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MOST_KEY + 1)
    except OSError as error:
        raise SourceError(f"cannot read the {what} {path}: {error.strerror or error}") from error
    if len(text) > MOST_KEY:
        raise DataError(
            f"{path} has more than {MOST_KEY:,} bytes, so it is not a {what}; make one: ctrbox publish keygen"
        )
    try:
        found = unsealed(text, str(path), what)
    except DataError as error:
        raise DataError(
            f"{error}; expected a {what} that `ctrbox publish keygen` made"
        ) from None  # no text of the file
    kind, key = found.get("kind"), found.get("key")
    if kind in (f"ctrbox {PRIVATE}", f"ctrbox {PUBLIC}") and kind != f"ctrbox {what}":
        other = f"{path}.pub" if what == PUBLIC else str(path).removesuffix(".pub")
        raise DataError(f"{path} is a {str(kind).removeprefix('ctrbox ')}, expected a {what}; it may be in {other}")
    if set(found) != _FIELDS or kind != f"ctrbox {what}" or found["algorithm"] != "Ed25519":
        raise DataError(f"{path} is not a {what} that this version of CTRBox reads; make one: ctrbox publish keygen")
    if not isinstance(key, str) or not _KEY.fullmatch(key) or not isinstance(found["id"], str):
        raise DataError(f"{path} is damaged: its key is not 64 hexadecimal digits; restore it from a copy")
    if stat.S_IMODE(mode) & forbidden:
        who = "other users can change it" if what == PUBLIC else "other users can read or change it"
        advice = "o-w" if what == PUBLIC else "600"
        raise DataError(f"{path} has the mode {stat.S_IMODE(mode):04o}, so {who}; restrict it: chmod {advice} {path}")
    return bytes.fromhex(key), found["id"]


def _write(path: Path, what: str, key_id: str, raw: bytes, mode: int) -> None:
    """Write a key file that nobody else can open before it has its mode; a file that exists is never replaced."""
    text = sealed({"kind": f"ctrbox {what}", "algorithm": "Ed25519", "id": key_id, "key": raw.hex()}) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WriteError(f"cannot write the {what} {path}: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        synced(path.parent)
    except OSError as error:
        remove(path)
        raise failure(error, path, path) from error
