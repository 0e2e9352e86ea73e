"""Writes weights in the form in which the processes of a server share them: float32 numbers, which need no copy when mapped.

One process loads new versions and writes each of them into a folder of its own. Every process maps this file with
`weight_file.map_weights`, so that all of them use the same memory. It is an ordinary weight file without 16-bit codes. The file
of a Deep FFM has one more part, `behind`, because its kernels also read some numbers after the last row, which must not be after
the end of the file.
"""

from __future__ import annotations

import os

import numpy as np

from ctrbox.publish.weight_file import Part, Weights, read_weights, write_weights
from ctrbox.publish.weights_of_models import DEEP_FFM, ffm_of, ffm_weights

BEHIND = 256  # floats: 4 latent vectors (kBehind of native/core/ffm/weight_layout.h) of at most 64 numbers


def write_shared(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Check a weight file, and write its weights to a file that processes can share. It is complete or not there at all."""
    weights = read_weights(source)
    if weights.kind == DEEP_FFM:
        # Through a model, as every file that is loaded: its weights are finite, and none of them is -0.
        weights = ffm_weights(*ffm_of(weights, str(source), False))
        behind = Part.floats("behind", np.zeros(BEHIND, np.float32))
        weights = Weights(weights.kind, weights.about, [*weights.parts, behind])
    write_weights(out, weights, quantize=False)
