"""Publishes weights: 16-bit codes, patches between two files, and numbered versions (docs/publishing/publish.md)."""

from ctrbox.publish.patch import PatchFacts, apply, diff, read_facts
from ctrbox.publish.signed_statement import Trust
from ctrbox.publish.signing_keys import PrivateKey, PublicKey, keygen
from ctrbox.publish.versions import Published, Version
from ctrbox.publish.weight_file import Part, Weights, read_weights, write_weights
from ctrbox.publish.weights_of_models import pack, unpack

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
