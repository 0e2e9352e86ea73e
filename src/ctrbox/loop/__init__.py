"""Learns online: joins events, learns from them and publishes new versions (docs/online.md)."""

from ctrbox.loop.loop import OnlineLoop

__all__ = ["OnlineLoop"]
