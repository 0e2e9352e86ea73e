"""Publishes weights: 16-bit codes, patches between two files, and numbered versions (docs/publish.md)."""

from ctrbox.publish.patch import PatchFacts, apply, diff, read_facts
from ctrbox.publish.sources import pack, unpack
from ctrbox.publish.versions import Published, Version
from ctrbox.publish.weights import Part, Weights, read_weights, write_weights

__all__ = [
    "Part",
    "PatchFacts",
    "Published",
    "Version",
    "Weights",
    "apply",
    "diff",
    "pack",
    "read_facts",
    "read_weights",
    "unpack",
    "write_weights",
]
