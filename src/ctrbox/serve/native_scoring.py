"""Scores plain requests in one native call, without the interpreter's lock.

The call takes the bytes of a request as JSON or as tensors, and contains the reader, the context cache, both parts of the plan
and a Deep FFM (native/core/request/request_scorer.h). It leaves every request that is not plain to the path through Python, which
gives the same scores, errors and counts: then a method returns None, and nothing was counted or kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ctrbox import _native
from ctrbox.compiled_plan.split_for_requests import CONTEXT
from ctrbox.engines.run_on_request import ORIGIN
from ctrbox.errors import DataError
from ctrbox.ffm.engine import not_finite

# Name, datatype, shape, and elements as in the binary extension of the protocol.
Tensor = tuple[str, str, Sequence[int], bytes]
Times = _native.RequestTimes | None


class Plain(NamedTuple):
    """One version of a model and of the views that it reads.

    ``times`` of a method measures the parts of the call; with None, nothing is measured.
    """

    native: Any  # `_native.RequestScorer`
    key: bytes  # what stands before a context in the cache
    cache: _native.ContextCache
    version: int
    views: bytes  # versions of the joined views, as the response header says them

    def json(self, body: bytes, times: Times = None) -> np.ndarray | None:
        """Return the scores of a request of POST /v1/score."""
        with errors_of_python():
            found: np.ndarray | None = self.native.answer(body, self.key, self.cache, times)
        return found

    def infer(self, body: bytes, json_bytes: int, times: Times = None) -> tuple[np.ndarray, str, bool] | None:
        """Return scores, id and whether the scores are wanted as binary, of a request of the Open Inference Protocol.

        ``json_bytes``: the length of its JSON, which binary tensors may follow.
        """
        with errors_of_python():
            found: tuple[np.ndarray, str, bool] | None = self.native.answer_infer(
                body, json_bytes, self.key, self.cache, times
            )
        return found

    def tensors(self, tensors: Sequence[Tensor], times: Times = None) -> np.ndarray | None:
        """Return the scores of a request that came as tensors."""
        with errors_of_python():
            found: np.ndarray | None = self.native.answer_tensors(tensors, self.key, self.cache, times)
        return found


@contextmanager
def errors_of_python() -> Iterator[None]:
    """Convert errors of native code inside the context to those that the path through Python raises."""
    try:
        yield
    except _native.BadPart as error:
        message, of_context, row = error.args
        if row < 0:
            raise DataError(f"{'the context' if of_context else 'candidates'}: {message}") from error
        raise DataError(f"{message} (at {(CONTEXT if of_context else ORIGIN).name(row)})") from None
    except _native.BadScore as error:
        raise not_finite(error.args[0]) from None
