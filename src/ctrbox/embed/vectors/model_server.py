"""Defines ``ModelServer``, the embedder whose vector of a key is ``submodel(data[key])``, trained through ``push``.

server = cb.tables.ModelServer("images.ctrvec", dim=12)                 # 4096-256-64-12 over a vector file
vectors = server.pull(keys)                                      # each distinct key is computed once
server.push(keys, gradients)                                     # by the vectors; the sub-model's own optimizer steps

``prefetch`` may run in one thread while another thread calls the other methods, because it only uses the file and the
rows that are kept for the next pulls. ``pull``, ``push``, ``save`` and ``restore`` use the sub-model and take turns.
The results have the same bits as those of a torch model that runs the same blocks inside its graph.

The server refuses calls that need more memory than the budget, gradients and vectors that are not finite (the error
names the key), gradients whose step would make weights that are not finite, sub-models whose result is not a float32
tensor (n, dim), and files that are damaged or of another sub-model. Nothing is changed then.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.arguments.numbers import counted, whole
from ctrbox.arguments.sizes import checked_bytes
from ctrbox.embed.embedder import Floats, Keys, NextUse, Row, Shaped
from ctrbox.embed.embedder_traits import Initial, Objects, Traits
from ctrbox.embed.settings_of_tables import check_factor, checked_keys, checked_nonfinite
from ctrbox.embed.vectors.count_keys_without_vector import Misses
from ctrbox.embed.vectors.model_server_file import read_server, write_server
from ctrbox.embed.vectors.submodels import ImageEmbedding
from ctrbox.embed.vectors.vector_file import Data, Places, VectorFile
from ctrbox.errors import BudgetError, DataError, PlanError
from ctrbox.files.urls import local_path
from ctrbox.optimizers.of_dense_weights import (
    DenseOptimizer,
    checked_device,
    dense_optimizer,
    finite_step,
    optimizer_state,
    restore_optimizer,
)
from ctrbox.optimizers.of_table_rows import Adam

AHEAD = 4  # batches whose rows are kept for their pull: two in the queue, one on either side of it
MISSING = ("zero", "error")
AGAIN = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)  # a second forward of these differs


@dataclass(frozen=True, eq=False)
class _Kept:
    """A pull that waits for its push."""

    keys: Keys
    present: Places  # which of the keys have data
    blocks: list[torch.Tensor]  # what the sub-model gave, with the graph behind it


@named_arguments
class ModelServer(Shaped):
    """An embedder that computes the vectors of objects, such as images, with a trainable sub-model.

    ``data``       inputs of the sub-model by key: a `VectorFile` or its path
    ``submodel``   torch module that turns a block of rows into vectors (n, dim) float32; default: an `ImageEmbedding` with
                   ``dim`` floats
    ``optimizer``  optimizer of the sub-model: cb.optim.Adam, cb.Adagrad, cb.optim.SGD, or a function that makes a torch
                   optimizer from parameters
    ``missing``    what to do with keys without data: "zero" returns and counts zero vectors, "error" raises an error. If no
                   key has data, the training is refused
    ``block``      number of keys per forward pass; it changes the order of sums, and so the last bits of results
    ``budget``     maximum memory for rows and activations, in bytes or as text ("512MB")
    ``recompute``  whether a push runs the forward pass again instead of keeping its activations
    ``nonfinite``  what to do with gradients that are not finite, or whose step would make weights that are not finite:
                   "refuse" refuses the push; "skip" skips and counts their keys, or the whole push if only the step shows the
                   problem
    ``synchronize``  function that is called in every push between the backward pass and the step, with the weights of the
                     sub-model, so that several servers with shards of the data can add up their gradients
    """

    def __init__(
        self,
        data: VectorFile | str | os.PathLike[str],
        submodel: nn.Module | None = None,
        *,
        dim: int = 12,
        optimizer: DenseOptimizer = Adam(lr=0.001),  # noqa: B008 - frozen
        missing: str = "zero",
        block: int = 4096,
        budget: int | str = "4GB",
        recompute: bool = False,
        device: str = "cpu",
        seed: int = 0,
        nonfinite: str = "refuse",
        synchronize: Callable[[Sequence[nn.Parameter]], None] | None = None,
    ) -> None:
        self.data = data if isinstance(data, VectorFile) else VectorFile(data)
        if not isinstance(missing, str) or missing not in MISSING:
            raise PlanError(f"missing must be 'zero' or 'error', got {missing!r}{nearest(str(missing), MISSING)}")
        self.missing, self.recompute, self.optimizer = missing, recompute, optimizer
        self.block = whole("block=", block, 1, 1 << 24)
        self.budget = checked_bytes("budget", budget)
        self.seed = whole("seed=", seed, 0, 2**63 - 1)
        self.nonfinite = checked_nonfinite(nonfinite)
        self.device = checked_device(device)
        self.submodel = (self._usual(dim) if submodel is None else submodel).to(self.device)
        self.synchronize = synchronize
        # Whether weights without a gradient are given zeros before ``synchronize``; `Gang.add_up` has to know which have none.
        self.zeros = True
        self.misses = Misses()
        self._factor = 1.0
        self._alone = threading.RLock()
        self._ahead_lock = threading.Lock()
        self._ahead: OrderedDict[bytes, tuple[Keys, Places, Data]] = OrderedDict()
        self._kept: _Kept | None = None
        self._counts = dict.fromkeys(("pulls", "pushes", "keys", "missing", "computed", "rows_read", "skipped"), 0)
        self._row = Row(self._probe())
        weights = [p for p in self.submodel.parameters() if p.requires_grad]
        if not weights:
            raise PlanError(
                f"the sub-model {type(self.submodel).__name__} has no weights that could be trained; write its output to a "
                "vector file instead"
            )
        self._step = dense_optimizer(optimizer)(weights)
        self._rates = [group["lr"] for group in self._step.param_groups]

    # ---- the contract

    @property
    def traits(self) -> Traits:
        """Return what this Model Server can do beyond the protocol `cb.tables.Embedder`."""
        return Traits(
            gradients="mean",  # all keys share the weights of the sub-model, as they share those of the click model
            scales_lr=True,
            publishes=True,
            initial=Initial(0.0, 0),  # a key without data has the zero vector
            objects=Objects(self.data, self.submodel, self.misses),
            settings=("optimizer", "seed", "identity"),
        )

    def open(self, row: Row) -> None:
        if row != self._row:
            raise PlanError(
                f"this Model Server returns {self._row}, but the model reads {row}; a sub-model computes "
                f"vectors and has no first-order weights"
            )

    def prefetch(self, keys: Keys, *, next_use: NextUse | None = None) -> None:
        """Find, read and check the rows of these keys before they are pulled. Up to half of the budget is used to keep them.

        ``next_use`` is ignored.
        """
        wanted = checked_keys(keys)
        places = self.data.find(wanted)
        there = places[places >= 0]
        if self._bytes(len(there), rows=True) * AHEAD > self.budget // 2:
            self.data.touch(there)
            return
        found = self._read(there)
        with self._ahead_lock:
            self._ahead[wanted.tobytes()] = wanted, places, found
            while len(self._ahead) > AHEAD:
                self._ahead.popitem(last=False)

    def pull(self, keys: Keys, *, create: bool = True) -> Floats:
        """Return the vectors (n, dim). With ``create``, the next push trains them. A key that is given twice is computed once."""
        wanted = checked_keys(keys)
        first, inverse = _distinct(wanted)
        mine = wanted if first is None else wanted[first]
        with self._alone:
            if create:
                self._kept = None
            places, rows = self._taken(mine)
            present = np.flatnonzero(places >= 0)
            self._count_missing(mine, places, create)
            keep = create and not self.recompute
            need = self._bytes(len(present) if keep or rows is not None else min(len(present), self.block), keep=keep)
            if need + self._ahead_bytes() > self.budget:
                with self._ahead_lock:
                    self._ahead.clear()  # what was read ahead gives way
            if need > self.budget:
                raise BudgetError(
                    f"{len(present):,} keys need {need:,} "
                    f"bytes for rows and activations, but the budget of this "
                    f"Model Server is {self.budget:,}; raise budget=, use smaller batches, or set recompute=True"
                )
            vectors = np.zeros((len(mine), self.dim), np.float32)
            blocks: list[torch.Tensor] = []
            self.submodel.train(create)
            with torch.set_grad_enabled(keep):
                for begin, end in self._spans(len(present)):
                    given = self._read(places[present[begin:end]]) if rows is None else rows[begin:end]
                    out = self._forward(given)
                    vectors[present[begin:end]] = out.detach().cpu().numpy()
                    if keep:
                        blocks.append(out)
            wrong = np.flatnonzero(~np.isfinite(vectors).all(1))
            if len(wrong):
                raise DataError(
                    f"the sub-model returned {vectors[wrong[0]]} for key {int(mine[wrong[0]])} of {self.data.path}; "
                    + (
                        "lower its learning rate"
                        if create
                        else "check that its inputs are in the same range as in training"
                    )
                )
            if keep:
                self._kept = _Kept(mine, present, blocks)
            self._counts["pulls"] += 1
            self._counts["keys"] += len(mine)
            self._counts["computed"] += len(present)
        return vectors if first is None else vectors[inverse]

    def push(self, keys: Keys, gradients: Floats, *, shows: Floats | None = None, clicks: Floats | None = None) -> None:
        """Propagate gradients through the sub-model, and apply a step of its optimizer.

        The gradients of a key that is given twice are summed. ``shows`` and ``clicks`` are ignored, because a Model Server
        has no counters.
        """
        moved = checked_keys(keys)
        g = np.asarray(gradients)
        if g.shape != (len(moved), self.dim) or g.dtype != np.float32:
            raise DataError(f"expected gradients of shape {(len(moved), self.dim)} float32, got {g.shape} {g.dtype}")
        first, inverse = _distinct(moved)
        if first is not None:
            total = np.zeros((len(first), self.dim), np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                np.add.at(total, inverse, g)
            moved, g = moved[first], total
        wrong = np.flatnonzero(~np.isfinite(g).all(1))
        if len(wrong):
            if self.nonfinite == "refuse":
                raise DataError(
                    f"the gradient of key {int(moved[wrong[0]])} is {g[wrong[0]]}"
                    f"; no weight was changed. Lower the "
                    f"learning rate, or look for values that are not finite in the inputs"
                )
            g = np.where(np.isfinite(g).all(1, keepdims=True), g, np.float32(0))
        with self._alone:
            kept, self._kept = self._kept, None
            if kept is None or not np.array_equal(kept.keys, moved):
                kept = None
                places = self.data.find(moved)
                present = np.flatnonzero(places >= 0)
                self.submodel.train()
            else:
                present = kept.present
            self._step.zero_grad(set_to_none=True)
            for begin, end in reversed(list(self._spans(len(present)))):
                at = present[begin:end]
                out = self._forward(self._read(places[at])) if kept is None else kept.blocks.pop()
                out.backward(torch.from_numpy(np.ascontiguousarray(g[at])).to(self.device))
            if self.synchronize is not None:
                self._synchronize()
            for group, rate in zip(self._step.param_groups, self._rates, strict=True):
                group["lr"] = rate * self._factor
            if not finite_step(self._step):
                self._step.zero_grad(set_to_none=True)
                if self.nonfinite == "refuse":
                    largest = int(np.abs(g).max(1).argmax()) if len(g) else 0
                    raise DataError(
                        f"a step with these gradients would make weights infinite or NaN; no weight was changed. The "
                        f"largest gradient is {g[largest]}, of key {int(moved[largest])}: lower the learning rate, or "
                        f"clip the gradients"
                    )
                wrong = np.arange(len(moved))
            self._counts["skipped"] += len(wrong)
            self._counts["pushes"] += 1

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rate of the optimizer by ``factor`` in all later pushes, for schedules. The factor is not
        saved.
        """
        self._factor = check_factor(factor)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sub-model and its optimizer to one file with a checksum. The data stays where it is."""
        with self._alone:
            states, plain = optimizer_state(self._step)
            tensors = {f"model.{name}": value for name, value in self.submodel.state_dict().items()}
            tensors |= {f"optimizer.{name}": value for name, value in states.items()}
            about = {"width": self.data.width, "dim": self.dim, "optimizer": type(self._step).__name__, "plain": plain}
            write_server(local_path(path, "a saved Model Server"), tensors, about)

    def restore(self, path: str | os.PathLike[str], *, optimizer: bool = True) -> None:
        """Replace the contents by those that ``save`` wrote. With ``optimizer=False``, restore only the sub-model."""
        tensors, about = read_server(local_path(path, "a saved Model Server"))
        for name, mine in (("width", self.data.width), ("dim", self.dim)):
            if about.get(name) != mine:
                raise DataError(f"{path} was saved with {name} {about.get(name)!r}, but this Model Server has {mine}")
        kind = type(self._step).__name__
        if optimizer and about.get("optimizer") != kind:
            raise DataError(
                f"{path} was saved with optimizer {about.get('optimizer')!r}, but this Model Server has {kind!r}"
            )
        weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        states = {n.removeprefix("optimizer."): t for n, t in tensors.items() if n.startswith("optimizer.")}
        mine = self.submodel.state_dict()
        odd = sorted(set(weights) ^ set(mine))
        if odd:
            raise DataError(f"{path} holds a different sub-model: only one of the two has the weight {odd[0]!r}")
        for name, tensor in sorted(weights.items()):
            if tensor.shape != mine[name].shape or tensor.dtype != mine[name].dtype:
                raise DataError(
                    f"{path} holds a different sub-model: weight {name!r} is {tuple(tensor.shape)} {tensor.dtype}, expected "
                    f"{tuple(mine[name].shape)} {mine[name].dtype}"
                )
        plain = about.get("plain")
        with self._alone:
            if optimizer:
                self._check_states(states, plain, path)
                restore_optimizer(self._step, states, plain or {}, Path(path))
            self.submodel.load_state_dict(weights)
            self._kept = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Memory in bytes of the weights, of the optimizer and of the rows that were read in advance. The file is mapped and
        not counted.
        """
        states, _ = optimizer_state(self._step)
        held = sum(t.numel() * t.element_size() for t in [*self.submodel.state_dict().values(), *states.values()])
        return held + self._ahead_bytes()

    # ---- beyond the contract

    def embed(self, rows: npt.ArrayLike) -> Floats:
        """Compute the vectors of objects that are in no file, such as a new image: (n, width) → (n, dim)."""
        given = np.asarray(rows, np.int32 if self.data.tokens else np.float32)
        if given.ndim != 2 or given.shape[1] != self.data.width:
            raise DataError(f"expected rows of shape (n, {self.data.width}), got {given.shape}")
        wrong = np.flatnonzero(~np.isfinite(given).all(1))
        if len(wrong):
            raise DataError(f"row {wrong[0]} contains a NaN or an infinity; expected finite numbers")
        with self._alone, torch.no_grad():
            self.submodel.eval()
            parts = [self._forward(given[a:b]).cpu().numpy() for a, b in self._spans(len(given))]
        return np.concatenate(parts) if parts else np.zeros((0, self.dim), np.float32)

    def vectors(self) -> Iterator[tuple[Keys, Floats]]:
        """Yield the keys and vectors of all objects, one block at a time. They are published together with a model."""
        keys = self.data.keys
        for begin, end in self._spans(len(keys)):
            yield keys[begin:end], self.pull(keys[begin:end], create=False)

    def export(self) -> tuple[Keys, Floats, Floats]:
        """Return the keys in ascending order, their vectors, and empty states, in the form of a table's ``export``."""
        found = list(self.vectors())
        keys = np.concatenate([np.empty(0, np.int64), *(k for k, _ in found)])
        vectors = np.concatenate([np.empty((0, self.dim), np.float32), *(v for _, v in found)])
        order = np.argsort(keys)
        return keys[order], vectors[order], np.empty((len(keys), 0), np.float32)

    def stats(self) -> dict[str, int]:
        """Return counts since the server was made: pulls, pushes, keys pulled, keys without data, vectors, rows read, and
        keys skipped.
        """
        return dict(self._counts)

    @property
    def identity(self) -> str:
        """Return a text with everything on which the vectors depend, except the weights."""
        text = " ".join(str(self.submodel).split())
        return f"{text} over {self.data.fingerprint}, block {self.block}, missing {self.missing}"

    def __repr__(self) -> str:
        return f"ModelServer({self.data!r} -> {type(self.submodel).__name__} -> dim={self.dim})"

    # ---- inside

    def _usual(self, dim: int) -> nn.Module:
        if self.data.tokens:
            raise PlanError(
                "this file holds tokens; pass a sub-model for them: submodel=cb.tables.TextEmbedding(vocabulary)"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return ImageEmbedding(self.data.width, dim=dim)

    def _probe(self) -> int:
        """Floats of a vector, and how many bytes the graph of a key keeps: from two rows of zeros."""
        name = type(self.submodel).__name__
        if self.recompute:
            for part in self.submodel.modules():
                if isinstance(part, AGAIN) and (not isinstance(part, AGAIN[0]) or part.p > 0):
                    raise PlanError(
                        f"recompute=True runs the sub-model a second time, and its {type(part).__name__} would give another "
                        "result the second time; use recompute=False, or remove this part of the sub-model"
                    )
        held: dict[int, int] = {}
        own = {p.untyped_storage().data_ptr() for p in [*self.submodel.parameters(), *self.submodel.buffers()]}

        def count(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        rows = torch.zeros((2, self.data.width), dtype=torch.int32 if self.data.tokens else torch.float32)
        self.submodel.eval()
        try:
            with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
                out = self.submodel(rows.to(self.device))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise PlanError(
                f"{name} cannot read the rows of {self.data.path}, which have {self.data.width} {self.data.dtype} each: {error}"
            ) from error
        fine = isinstance(out, torch.Tensor) and out.ndim == 2 and len(out) == 2 and out.dtype == torch.float32
        if not fine:
            met = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, torch.Tensor) else type(out).__name__
            raise PlanError(f"{name} returned {met} for two rows; expected (2, dim) torch.float32")
        self._graph_bytes = sum(held.values()) // 2
        return whole("the vectors of a sub-model: dim=", out.shape[1], 1, 4096)

    def _forward(self, rows: Data) -> torch.Tensor:
        out: torch.Tensor = self.submodel(torch.from_numpy(rows).to(self.device))
        if tuple(out.shape) != (len(rows), self.dim):
            raise PlanError(
                f"the sub-model returned shape {tuple(out.shape)} for {len(rows)} rows; expected {(len(rows), self.dim)}"
            )
        return out

    def _synchronize(self) -> None:
        """Also where this server had no key of the batch: the others wait for it."""
        assert self.synchronize is not None
        weights = [p for group in self._step.param_groups for p in group["params"]]
        for weight in weights:
            if weight.grad is None and self.zeros:
                weight.grad = torch.zeros_like(weight)
        self.synchronize(weights)

    def _spans(self, count: int) -> Iterator[tuple[int, int]]:
        for begin in range(0, count, self.block):
            yield begin, min(begin + self.block, count)

    def _taken(self, keys: Keys) -> tuple[Places, Data | None]:
        """Return the positions of the keys' rows, and the rows themselves if they were read ahead."""
        with self._ahead_lock:
            found = self._ahead.pop(keys.tobytes(), None)
        return (self.data.find(keys), None) if found is None else found[1:]

    def _ahead_bytes(self) -> int:
        with self._ahead_lock:
            return sum(rows.nbytes for _, _, rows in self._ahead.values())

    def _read(self, places: Places) -> Data:
        self._counts["rows_read"] += len(places)
        return self.data.read(places)

    def _bytes(self, keys: int, rows: bool = False, keep: bool = False) -> int:
        """Return the bytes that the rows of so many keys need, or a forward pass over them."""
        row = 4 * self.data.width
        return keys * (row if rows else (max(row, self._graph_bytes) if keep else row) + 8 * self.dim)

    def _count_missing(self, keys: Keys, places: Places, create: bool) -> None:
        lost = np.flatnonzero((places < 0) & (keys != 0))
        if len(lost) and self.missing == "error":
            raise DataError(
                f"{counted(len(lost), 'key')} of a batch {'has' if len(lost) == 1 else 'have'} no row in {self.data.path}, "
                f"such as key {int(keys[lost[0]])}; missing='zero' gives such keys the zero vector"
            )
        if create:
            self._counts["missing"] += len(lost)
            self.misses.add(keys, places, self.data)

    def _check_states(self, states: dict[str, torch.Tensor], plain: Any, path: Any) -> None:
        if not isinstance(plain, dict | None) or not all(
            isinstance(v, int | float | bool) for v in (plain or {}).values()
        ):
            raise DataError(f"{path} is damaged: its optimizer state is {plain!r}; restore it from a copy")
        weights = [p for group in self._step.param_groups for p in group["params"]]
        for name, tensor in states.items():
            number = name.partition(".")[0]
            fits = number.isdigit() and int(number) < len(weights)
            if not fits or (tensor.ndim and tensor.shape != weights[int(number)].shape):
                raise DataError(
                    f"{path} holds the state of another optimizer: {name!r} has shape {tuple(tensor.shape)}"
                )


def _distinct(keys: Keys) -> tuple[Places | None, Places]:
    """Positions of each distinct key's first place, in their order, and which of them each key is; None where all
    differ.
    """
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(keys):
        return None, inverse
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse]
