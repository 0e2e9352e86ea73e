"""Defines ``WithCheckpoint``: the end of a ``with`` block closes a table, and writes a checkpoint unless the block raised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class WithCheckpoint(ABC):
    @abstractmethod
    def close(self, checkpoint: bool = True) -> None:
        """Close the table; with ``checkpoint`` write a checkpoint first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(checkpoint=error is None)
