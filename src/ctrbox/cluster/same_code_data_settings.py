"""Checks that all processes on a Ray cluster have the same code, data and settings, as ctrbox.ranks does for ranks."""

from __future__ import annotations

import ray

from ctrbox.ranks.same_code_data_settings import check_same, code, facts_here, facts_of

__all__ = ["check_same", "code", "facts_here", "facts_of", "host_here"]


def host_here() -> str:
    """Return the address at which other machines of the cluster reach this machine."""
    return str(ray.util.get_node_ip_address())
