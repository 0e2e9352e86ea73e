"""Detects tensors in which one row stands for all (stride 0), such as the context's part of a request.

Nothing else of CTRBox makes them, so parts of models may ask: what depends on such rows alone is computed once. Results are
those of the repeated rows, up to rounding.
"""

from __future__ import annotations

import torch


def stands_for_all(rows: torch.Tensor) -> bool:
    return rows.stride(0) == 0 and len(rows) > 1
