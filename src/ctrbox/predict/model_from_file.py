"""Builds models that a file names, without using more memory than the weights of the file justify.

The arguments of a model come from a file. A hidden layer of a million units, or a million layers, would be allocated before they
could be compared with the weights. Therefore the model is first built without memory for weights, and with a limit on the number
of its modules and parameters. Then its shapes are compared with those in the file. Only then is it built for use.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from ctrbox import models
from ctrbox.columns.batch import Schema
from ctrbox.errors import DataError

MOST_CONFIG = 256 << 10  # bytes of a model's arguments as JSON; ours take a few hundred
PARTS_OF_A_WEIGHT, MORE_PARTS = 8, 1000  # modules and weights of a model, for each weight and in all


def untrained(name: str, schema: Schema, config: Any, weights: int, compare: Callable[[nn.Module], None]) -> nn.Module:
    """Return a model of ``cb.models`` with new weights.

    ``weights``: number of tensors in the file. ``compare`` is called with the model before it has memory, and may raise an error.
    """
    if len(json.dumps(config)) > MOST_CONFIG:
        raise DataError(f"the constructor arguments of {name} in the file need more than {MOST_CONFIG:,} bytes of JSON")
    with torch.device("meta"), _few_parts(name, PARTS_OF_A_WEIGHT * weights + MORE_PARTS):
        shapes = models.build(name, schema, config)
    compare(shapes)
    # With memory, which the size of the file bounds by now: buffers that are no weights need their values, too.
    with torch.random.fork_rng(devices=[]):
        return models.build(name, schema, config)


@contextlib.contextmanager
def _few_parts(name: str, most: int) -> Iterator[None]:
    """Raise a DataError inside the context if this thread builds a model of more than ``most`` modules and parameters."""
    mine, parts = threading.get_ident(), 0

    def count(module: nn.Module, part_name: str, part: Any) -> None:
        nonlocal parts
        if threading.get_ident() != mine:
            return
        parts += 1
        if parts > most:
            raise DataError(
                f"the file describes a {name} with more than {most:,} modules and parameters, far more than its number of "
                "weights can fill; it is damaged, or was not written by CTRBox"
            )

    hooks = [register_module_module_registration_hook(count), register_module_parameter_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
