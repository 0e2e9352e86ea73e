"""Publishes weights: 16-bit codes, patches between two files, and numbered versions (docs/publish.md)."""

from ctrbox.publish.keys import PrivateKey, PublicKey, keygen
from ctrbox.publish.patch import PatchFacts, apply, diff, read_facts
from ctrbox.publish.sources import pack, unpack
from ctrbox.publish.statement import Trust
from ctrbox.publish.versions import Published, Version
from ctrbox.publish.weights import Part, Weights, read_weights, write_weights

__all__ = [
    "Part",
    "PatchFacts",
    "PrivateKey",
    "PublicKey",
    "Published",
    "Trust",
    "Version",
    "Weights",
    "apply",
    "diff",
    "keygen",
    "pack",
    "read_facts",
    "read_weights",
    "unpack",
    "write_weights",
]
