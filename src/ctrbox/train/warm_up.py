"""Starts a training from parts of an earlier one (Ge et al., "Image Matters", section 7.2).

    none      nothing: the training begins with new weights
    partial   everything except the embeddings of ids: the weights of the click model, and the sub-models of Model Servers.
              Embeddings of ids overfit after one epoch of the earlier training; sub-models and towers need more than one epoch
    full      the tables as well, with the states of their optimizers
    continue  everything that the next step depends on: also the optimizers of the click model and of sub-models, and the random
              state. The training of a second day continues as if the first had not ended (docs/training/continue.md)

With "partial" and "full", the optimizers of the click model and of sub-models begin with new states. A warm-up refuses another
model, other fields and another kind of optimizer, and a partial warm-up refuses tables that already have rows. The earlier run is
read and never changed.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.shards import restore_shard
from ctrbox.errors import PlanError, SourceError
from ctrbox.files.urls import refuse_url
from ctrbox.predict.tables_of_fields import Source
from ctrbox.predict.weights_folder import read_dense, read_state
from ctrbox.train.checkpoint import read_optimizer, write_weights
from ctrbox.train.learn_batch import Learner
from ctrbox.train.run import Run
from ctrbox.train.run_folder import describe
from ctrbox.train.seen_in_training import log_fingerprint, recorded_fingerprint

ABSENT = object()
WARM_UPS = ("none", "partial", "full", "continue")


@dataclass(frozen=True)
class WarmUp:
    """The kind of a warm-up, and the earlier run: a `Run` or its folder."""

    kind: str = "none"
    run: Run | str | Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in WARM_UPS:
            raise PlanError(
                f"warm_up must be one of {', '.join(WARM_UPS)}, got {self.kind!r}{nearest(str(self.kind), WARM_UPS)}"
            )
        if (self.kind == "none") != (self.run is None):
            raise PlanError(
                f"warm_up={self.kind!r} needs the run to start from: warm_from='runs/yesterday'"
                if self.run is None
                else "warm_from is given, but warm_up is 'none'; use 'partial', 'full' or 'continue'"
            )
        if not isinstance(self.run, Run | str | Path | None):
            raise PlanError(f"warm_from must be a run or its folder, got {type(self.run).__name__}")
        if isinstance(self.run, str | Path):
            refuse_url(self.run, "the run that a training starts from")

    def check(self, learner: Learner) -> None:
        """Refuse tables with rows for a partial warm-up, before anything is written."""
        if self.kind != "partial":
            return
        for source in learner.sources:
            if source.traits.objects is None and len(source.embedder):
                raise PlanError(
                    f"a partial warm-up starts with new embeddings of ids, but the table of {source.fields[0]!r} holds "
                    f"{len(source.embedder):,} rows; use an empty table, or warm_up='full'"
                )

    def identity(self) -> list[str]:
        """Return the parts of the earlier run that decide the weights; files by their checksums."""
        if self.run is None:
            return [self.kind]
        folder = self.run.folder if isinstance(self.run, Run) else Path(self.run)
        if folder is None:
            return [self.kind, "a run in memory"]
        files = read_state(_model(folder))["files"]
        return [
            self.kind,
            *(
                f"{name} {facts.get('sha256', facts.get('content', facts['bytes']))}"
                for name, facts in sorted(files.items())
            ),
        ]

    def warn_of_same_log(self, plan: Plan) -> None:
        """Warn if the earlier run was trained on a log with the same content, according to its fingerprint."""
        if self.run is None:
            return
        if isinstance(self.run, Run) and self.run.folder is None:
            theirs, where = log_fingerprint(self.run.plan), "the earlier run"
        else:
            folder = self.run.folder if isinstance(self.run, Run) else Path(self.run)
            assert folder is not None
            theirs, where = recorded_fingerprint(folder), str(folder)
        if theirs and theirs == log_fingerprint(plan):
            warnings.warn(
                f"{where} was trained on the same log {plan.log.name!r}, so this training sees rows that its model has seen "
                "before, and validation rows may be among them. To train on new rows, point the job's view at the new log",
                stacklevel=2,
            )

    def apply(self, learner: Learner) -> None:
        """Load the earlier weights into a model and its embedders."""
        if self.run is None:
            return
        if isinstance(self.run, Run) and self.run.folder is None:
            with tempfile.TemporaryDirectory(prefix="ctrbox-warm-") as aside:
                place, earlier = Path(aside) / "model", self.run.learner
                write_weights(place, describe(earlier, {}), earlier.held, random=earlier.random_states or True)
                self._take(place, learner)
            return
        folder = self.run.folder if isinstance(self.run, Run) else Path(self.run)
        assert folder is not None
        self._take(_model(folder), learner)

    def _take(self, place: Path, learner: Learner) -> None:
        state = read_state(place)
        name, config = type(learner.model).__name__, getattr(learner.model, "config", None)
        if state.get("model") != name:
            raise PlanError(
                f"{place.parent} "
                f"was trained with model {state.get('model')!r}, but this training has {name!r}; both "
                f"must have the same model"
            )
        if state.get("config") != config:
            raise PlanError(
                f"the model of this training differs from that of {place.parent}; build both with the same arguments. The "
                "differences are:\n  " + "\n  ".join(differences(state.get("config"), config))
            )
        if self.kind == "continue":
            _check_continues(place, state, learner)
        files = [(source, _file(place, state.get("tables"), source)) for source in learner.sources]
        for source, file in files:
            if source.traits.objects is not None:
                source.full.restore(file, optimizer=self.kind == "continue")
            elif self.kind != "partial":
                restore_shard(source.embedder, file)
        read_dense(place, learner.model)
        if self.kind == "continue":
            read_optimizer(place, state, learner.model, learner.optimizer)
            learner.begun = True


def differences(theirs: Any, mine: Any, name: str = "") -> list[str]:
    """Return one line for each setting of a model that differs from that of an earlier run, such as "dim of 'user': 8 there, 16
    here".
    """
    if not isinstance(theirs, Mapping) or not isinstance(mine, Mapping):
        shown = ["not set" if value is ABSENT else repr(value)[:200] for value in (theirs, mine)]
        return [f"{name or 'config'}: {shown[0]} there, {shown[1]} here"]
    found = []
    for key in dict.fromkeys([*theirs, *mine]):
        there, here = theirs.get(key, ABSENT), mine.get(key, ABSENT)
        if there != here:
            found += differences(there, here, f"{name} of {key!r}" if name else str(key))
    return found


def _check_continues(place: Path, state: Mapping[str, Any], learner: Learner) -> None:
    if "dense optimizer" not in state or "optimizer.safetensors" not in state["files"]:
        raise PlanError(
            f"{place.parent} was trained by a version of CTRBox that did not save the optimizer state of a finished run; "
            "start from its weights only: warm_up='full'"
        )
    mine = None if learner.optimizer is None else type(learner.optimizer).__name__
    if state["dense optimizer"] != mine:
        raise PlanError(
            f"{place.parent} was trained with the dense optimizer {state['dense optimizer']}, but this training uses {mine}, "
            "which cannot use its state; use the same optimizer, or start from the weights only: warm_up='full'"
        )
    if state.get("fingerprint") != learner.schema.fingerprint:
        warnings.warn(
            f"the plan of {place.parent} has another fingerprint than this one: features, cleaning or fitted values (buckets, "
            "click rates) differ. Fields are matched by name; to keep fitted values, train the earlier plan over the new log: "
            "cb.Run.load(…).plan.over(data)",
            stacklevel=2,
        )


def _model(folder: Path) -> Path:
    if not (folder / "model").is_dir():
        raise SourceError(f"{folder} holds no finished run to warm up from: its model is missing")
    return folder / "model"


def _file(place: Path, tables: Any, source: Source) -> Path:
    """Return the file of the embedder that had the same fields."""
    found = tables if isinstance(tables, Sequence) else []
    for k, fields in enumerate(found):
        if isinstance(fields, list) and set(fields) == set(source.fields):
            return place / f"table-{k}.ctrtable"
    raise PlanError(
        f"{place.parent} has no embedder for {', '.join(map(repr, source.fields))} "
        f"together; it has {found}; give the "
        f"fields the same embedders as before"
    )
