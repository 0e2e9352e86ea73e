"""Defines the error that a client gets when a request is refused: a status and one sentence."""

from __future__ import annotations

from ctrbox.errors import CtrboxError


class Refused(CtrboxError):
    """Refuses a request with the HTTP status ``status``. ``retry_after``: seconds after which the client may try again."""

    def __init__(self, status: int, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


def overloaded(message: str) -> Refused:
    return Refused(503, message, retry_after=1)
