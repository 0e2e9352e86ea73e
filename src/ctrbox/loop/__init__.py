"""The online loop: events arrive, are joined, learned from and published (docs/online.md)."""

from ctrbox.loop.loop import OnlineLoop

__all__ = ["OnlineLoop"]
