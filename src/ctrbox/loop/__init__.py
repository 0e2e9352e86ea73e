"""Learns online: joins events, learns from them and publishes new versions (docs/online.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctrbox.loop.online_loop import OnlineLoop

if TYPE_CHECKING:
    from ctrbox.loop.online_click_model import OnlineClickModel

__all__ = ["OnlineClickModel", "OnlineLoop"]


def __getattr__(name: str) -> Any:
    """Import `OnlineClickModel` when it is first used, so that a loop with a Deep FFM does not import torch."""
    if name == "OnlineClickModel":
        from ctrbox.loop.online_click_model import OnlineClickModel

        return OnlineClickModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
