"""Writes weights as processes of one server share them: float32 instead of 16-bit codes, so that a mapped file needs no copy.

One process takes up new versions and writes each of them into a folder of its own; every process maps that file by
`weights.map_weights`, so that all of them use the same memory. It is an ordinary weight file. That of a Deep FFM has one more
part, `behind`: its kernels read some vectors behind the last row, and what lies behind the end of a file must not be read.
"""

from __future__ import annotations

import os

import numpy as np

from ctrbox.publish.weight_file import Part, Weights, read_weights, write_weights
from ctrbox.publish.weights_of_models import DEEP_FFM, ffm_of, ffm_weights

BEHIND = 256  # floats: 4 latent vectors (kBehind of native/core/ffm/weight_layout.h) of at most 64 numbers


def write_shared(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Write the weights of a file, which is checked as when it is loaded, to a file that can be shared; whole or not at all."""
    weights = read_weights(source)
    if weights.kind == DEEP_FFM:
        # Through a model, as every file that is loaded: its weights are finite, and none of them is -0.
        weights = ffm_weights(*ffm_of(weights, str(source), False))
        behind = Part.floats("behind", np.zeros(BEHIND, np.float32))
        weights = Weights(weights.kind, weights.about, [*weights.parts, behind])
    write_weights(out, weights, quantize=False)
