"""Detects tensors in which one row stands for all (stride 0), such as the context's part of a request.

CTRBox makes such tensors only for requests, so models can compute once what depends only on such rows. The results are
those of the repeated rows, up to rounding.
"""

from __future__ import annotations

import torch


def stands_for_all(rows: torch.Tensor) -> bool:
    return rows.stride(0) == 0 and len(rows) > 1
