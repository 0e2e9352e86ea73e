"""``HistoryModel``: what BST, SIM and HSTU share, a target and one history whose items have a position and an age.

An item of a history becomes   vector of its key + vector of its position + vector of its age (if ``age`` names a field)

The newest item has position 0, and the items beyond position ``longest`` share the last one. ``age`` is a second list of
the same length, such as the age of each event in buckets: ``col("history_age").bucketize(...)``. It has its own keys and vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ctrbox.arguments.names import nearest
from ctrbox.arguments.numbers import whole
from ctrbox.errors import PlanError
from ctrbox.models.dense_columns import DenseInput
from ctrbox.models.history_fields import pairs_of, poolings, refuse_other_sequences
from ctrbox.models.inputs import Inputs, Reads
from ctrbox.models.model_arguments import asked
from ctrbox.models.repeated_row import stands_for_all

MOST_PLACES = 1 << 16


@dataclass(frozen=True)
class History:
    """The items of the histories of all rows or, with ``shared``, of the one history that all rows share."""

    vectors: torch.Tensor  # (rows or 1, longest, dim): of the keys alone
    items: torch.Tensor  # the same with places and ages; zeros where there is padding
    lengths: torch.Tensor  # (rows or 1,)
    real: torch.Tensor  # (rows or 1, longest): False where there is padding
    shared: bool

    def mean(self) -> torch.Tensor:
        """Return the mean of the items; zeros for a row without any."""
        return self.items.sum(1) / self.lengths.clamp(min=1).unsqueeze(1)


class HistoryModel(nn.Module):
    """The base class of models with a target and a history. A subclass passes its ``locals()``, which include
    ``target``, ``history``, ``age`` and ``longest``.
    """

    def __init__(self, arguments: Mapping[str, Any], *, beside: Mapping[str, str] | None = None) -> None:
        """``beside``: more fields that are lists of the same length as the history, by the name of their argument."""
        super().__init__()
        name, schema, fields = type(self).__name__, arguments["schema"], arguments["fields"]
        self.config = asked(arguments)
        for argument in ("target", "history"):
            if not isinstance(arguments[argument], str):
                raise PlanError(f"{name} takes the name of one field as {argument}, got {arguments[argument]!r}")
        ((self.target, self.history),) = pairs_of(name, schema, arguments["target"], arguments["history"], fields)
        self.age: str | None = arguments["age"]
        self.beside = {**({"age": self.age} if self.age is not None else {}), **(beside or {})}
        known = [f.name for f in schema.sparse] if fields is None else list(fields)
        for argument, field in self.beside.items():
            if field not in known or field in (self.target, self.history):
                raise PlanError(
                    f"{argument} of {name} must be a list field beside the history {self.history!r}, "
                    f"got {field!r}{nearest(str(field), known)}; this plan has {known}"
                )
        pasts = [self.history, *self.beside.values()]
        how = poolings(name, schema, arguments["pooling"], fields, pasts)
        self.reads = Reads(schema, arguments["dim"], dims=arguments["dims"], pooling=how, fields=fields)
        refuse_other_sequences(name, self.reads, pasts)
        self.dim = self.reads.dims[self.history]
        if self.dim < 2:
            raise PlanError(f"{name} needs vectors of 2 numbers or more for {self.history!r}, got a dim of {self.dim}")
        if self.age is not None and self.reads.dims[self.age] != self.dim:
            raise PlanError(
                f"{name} adds the vectors of {self.age!r} to those of {self.history!r}; "
                f"give both the same dim, not {self.reads.dims[self.age]} and {self.dim}"
            )
        self.longest = whole(f"longest of {name}", arguments["longest"], 1, MOST_PLACES)
        self.places = nn.Parameter(torch.randn(self.longest, self.dim) * 0.01)
        self.dense = DenseInput(self.reads.dense)
        # Each of these models gives its tower this many columns, besides its own parts.
        self.width = self.reads.width + self.reads.dense

    def past(self, x: Inputs) -> History:
        """Return the history of each row; of the first row alone where it stands for all, as in a request."""
        vectors, lengths = self._sequence(x, self.history)
        shared = self._shared(x)
        at = torch.arange(vectors.shape[1], device=vectors.device)
        real = at < lengths.unsqueeze(1)
        place = (lengths.unsqueeze(1) - 1 - at).clamp(0, self.longest - 1)
        items = vectors + self.places[place]
        if self.age is not None:
            items = items + self.parallel(x, self.age, lengths)
        return History(vectors, items * real.unsqueeze(2), lengths, real, shared)

    def parallel(self, x: Inputs, field: str, lengths: torch.Tensor) -> torch.Tensor:
        """Return the vectors of a list that is parallel to the history; lists of other lengths are refused."""
        vectors, others = self._sequence(x, field)
        if not torch.equal(others, lengths):
            row = int((others != lengths).nonzero()[0])
            raise PlanError(
                f"{type(self).__name__} needs lists of equal lengths in {self.history!r} and {field!r}, "
                f"but row {row} of a batch has {int(lengths[row])} and {int(others[row])} values"
            )
        return vectors

    def _sequence(self, x: Inputs, field: str) -> tuple[torch.Tensor, torch.Tensor]:
        vectors, lengths = x.sequence(field)
        return (vectors[:1], lengths[:1]) if self._shared(x) else (vectors, lengths)

    def _shared(self, x: Inputs) -> bool:
        """Return whether all rows have the same history. A list beside it, such as ages, may still differ by candidate."""
        fields = (self.history, *self.beside.values())
        return not self.training and all(stands_for_all(x.sequence(field)[0]) for field in fields)
