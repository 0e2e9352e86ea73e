"""Configures TLS for HTTP and gRPC, and reads the certificate and its key again when their files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from ctrbox.errors import PlanError, SourceError

log = logging.getLogger("ctrbox.serve")


class Certificate:
    """A certificate and its key. ``context`` is for HTTP, ``texts`` is for gRPC, and ``refresh`` reads changed files again."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self.certificate, self.key = certificate, key or certificate
        self._seen = self._facts()
        self.context, self.texts = self._read()

    def refresh(self) -> bool:
        """Reload files that changed, and return whether it did. If they do not match, this is logged, and the old certificate
        stays.
        """
        try:
            facts = self._facts()
            if facts == self._seen:
                return False
            self._seen = facts
            self.context, self.texts = self._read()
        except (SourceError, PlanError) as error:
            log.warning("could not reload the certificate, keeping the old one: %s", error)
            return False
        log.info("reloaded the certificate %s", self.certificate)
        return True

    def _facts(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(facts_of(path) for path in (self.certificate, self.key))

    def _read(self) -> tuple[ssl.SSLContext, tuple[bytes, bytes]]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])

        def password() -> str:
            raise PlanError(
                f"the private key {self.key} is encrypted with a password, which the server cannot ask for; remove the "
                "password first (openssl pkey -in KEY -out PLAIN)"
            )

        try:
            texts = self.key.read_bytes(), self.certificate.read_bytes()
            context.load_cert_chain(self.certificate, self.key, password)
        except ssl.SSLError as error:
            raise PlanError(self._mismatch(error)) from error
        except OSError as error:
            raise SourceError(f"cannot read {error.filename or self.key}: {error.strerror or error}") from error
        return context, texts

    def _mismatch(self, error: ssl.SSLError) -> str:
        if "KEY_VALUES_MISMATCH" in str(error):
            return f"the key {self.key} does not belong to the certificate {self.certificate}"
        return (
            f"cannot read a certificate and its key from {self.certificate} and {self.key}: expected PEM files "
            f"({error.reason or error})"
        )


def facts_of(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror or error}") from error
    return found.st_mtime_ns, found.st_size, found.st_ino
