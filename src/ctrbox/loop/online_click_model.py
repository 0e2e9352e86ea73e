"""Defines ``OnlineClickModel``, a click model of torch with its embedding tables that learns in the online loop.

    examples ──► batch.arrow ──► batches of exactly batch_size ──► score, then one step of ctrbox.train's Learner
                 (those of a batch that is not full yet)

The result of a step depends on which examples are in its batch. Therefore every batch has exactly ``batch_size`` examples, in the
order in which the loop learns from them, wherever chunks end and whenever the loop was restarted. The last examples wait until
their batch is full, and a checkpoint contains them. The weights then depend only on the order of the events, as those of a Deep
FFM do.

In a checkpoint of the loop, the folder ``model`` has the same contents as a checkpoint of `cb.Trainer`
(predict/weights_folder.py): dense weights, tables with the states of their optimizers, the state of the dense optimizer, and
torch's random state, which dropout uses.

The class refuses several labels, a GPU, tables whose rows cannot be published, and Model Servers. It also refuses a trained run
that has a calibration, another plan, another model or another optimizer. It does so before anything is written.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from ctrbox.arguments.names import named_arguments
from ctrbox.columns.batch import Batch, Schema
from ctrbox.columns.one_array import one_batch
from ctrbox.compiled_plan.plan import Plan
from ctrbox.engines.choose_device import wants_gpu
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.ffm.progressive_validation import Progress
from ctrbox.loop.join import CLICKED
from ctrbox.loop.online_model import MODEL
from ctrbox.optimizers.of_dense_weights import DenseOptimizer, dense_optimizer
from ctrbox.predict.check_keys_of_vector_files import check_key_kinds
from ctrbox.predict.published_run import weights_of_run
from ctrbox.predict.read_run_folder import fetched_run, other_plan, plan_of_run
from ctrbox.predict.tables_of_fields import Embedders
from ctrbox.predict.weights_folder import read_state
from ctrbox.publish.weight_file import Weights
from ctrbox.publish.weights_of_models import CLICK_MODEL
from ctrbox.train.checkpoint import read_weights, write_weights
from ctrbox.train.learn_batch import Learner
from ctrbox.train.run import Run
from ctrbox.train.settings import Settings, config_of, described, described_table
from ctrbox.train.table_setup import set_rate
from ctrbox.train.trainer import Trainer
from ctrbox.train.warm_up import WarmUp

BATCH_SIZE = 256  # default number of examples per step


@named_arguments
class OnlineClickModel:
    """A click model of torch for `cb.loop.OnlineLoop`: ``OnlineLoop(model.plan, model, "events/", "model/")``.

    ``plan``         the plan that computes the features of the model
    ``model``        a model of ``cb.models``, or a torch module of your own
    ``table``        tables of the embeddings, as for `cb.Trainer`; default: tables in memory
    ``optimizer``    optimizer of the dense weights, as for `cb.Trainer`
    ``batch_size``   examples per step; default: 256. Examples wait until their batch is full
    ``clip``, ``l2``, ``adaptive_l2``, ``seed``   as for `cb.Trainer.fit`
    ``lr``, ``threads``   as for `cb.Trainer`; the weights do not depend on ``threads``
    ``start``        a trained run, or its folder: a new model folder begins with its weights, its optimizer states and the values
                     that its plan took from the log; default: new weights
    """

    kind = CLICK_MODEL

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        table: Embedders | None = None,
        *,
        optimizer: DenseOptimizer | None = None,
        batch_size: int = BATCH_SIZE,
        clip: float | None = None,
        l2: float = 0.0,
        adaptive_l2: float = 0.0,
        lr: float | None = None,
        threads: int | None = None,
        seed: int = 0,
        start: Run | str | Path | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise PlanError(f"OnlineClickModel needs a plan, as cb.compile returns it, got {type(plan).__name__}")
        trainer = Trainer(model, table, optimizer=optimizer, threads=threads, device="cpu", lr=lr)
        settings = Settings(batch_size=batch_size, clip=clip, l2=l2, adaptive_l2=adaptive_l2, seed=seed)
        assert settings.batch_size is not None
        if plan.schema.tasks:
            raise PlanError(
                "the online loop learns one label, whether an impression was clicked, but this plan has several (labels=); train "
                "one job per label"
            )
        if plan.device != "auto" and wants_gpu(plan.device):
            raise PlanError(
                f"the online loop learns on the CPU, but this plan has device={plan.device!r}; compile it with device='cpu'"
            )
        self.start = None if start is None else _folder_of(start)
        self.plan = plan.fit() if self.start is None else plan_of_run(self.start, plan)
        schema = self.plan.schema
        self.learner = Learner(
            model,
            schema,
            table,
            dense_optimizer(trainer.optimizer),
            threads=trainer.threads or plan.threads,
            clip=settings.clip,
            l2=settings.l2,
            adaptive_l2=settings.adaptive_l2,
        )
        self._check_tables()
        if trainer.lr is not None:
            set_rate(self.learner.embedders, trainer.lr)
        check_key_kinds(self.learner, self.plan)
        if self.start is not None:
            _check_start(self.start, schema)
        self.batch_size, self.seed, self.progress = settings.batch_size, settings.seed, Progress()
        settings_of_folder = {
            "model": type(model).__name__,
            "model config": config_of(model),
            "tables": [described_table(table) for table in self.learner.embedders],
            "optimizer": described(trainer.optimizer),
            **{name: getattr(settings, name) for name in ("batch_size", "clip", "l2", "adaptive_l2")},
        }
        self.settings = json.loads(json.dumps(settings_of_folder))  # as they will be read back from a checkpoint
        self.learned = 0
        self._parts: list[Batch] = []  # examples of a batch that is not full yet
        # What a batch of examples has: group and weight are not needed to learn.
        self._schema = replace(schema, label=True, group=False, weight=False)

    def __repr__(self) -> str:
        return f"OnlineClickModel({self.settings['model']}, batch_size={self.batch_size:,}, learned={self.learned:,})"

    def _check_tables(self) -> None:
        for source in self.learner.sources:
            name, fields = type(source.embedder).__name__, ", ".join(map(repr, source.fields))
            if source.fused:
                raise PlanError(
                    f"the online loop learns on the CPU, but the rows of {fields} are in a cb.tables.{name}; use a cb.MemoryTable"
                )
            if source.traits.objects is not None or not source.traits.publishes:
                raise PlanError(
                    f"the online loop publishes the rows of tables, but those of {fields} are in a {name}, whose rows it cannot "
                    "publish; use a cb.MemoryTable or a cb.SparseTable"
                )

    @property
    def waiting(self) -> int:
        return sum(part.rows for part in self._parts)

    @property
    def fresh(self) -> bool:
        return self.start is None and not self.learned and not any(map(len, self.learner.embedders))

    def begin(self) -> None:
        torch.manual_seed(self.seed)
        if self.start is not None:
            WarmUp("continue", self.start).apply(self.learner)
            return
        for table in self.learner.embedders:
            if len(table):
                warnings.warn(
                    f"the {type(table).__name__} of this job already holds {len(table):,} rows, and the loop continues from "
                    "them; pass an empty table to start with new weights",
                    stacklevel=3,
                )

    # ---- learning

    def examples(self, batch: Batch) -> Batch:
        """Return the batch without the columns that a step does not read. Raise a DataError for a row it cannot learn from."""
        batch = batch.cpu()
        assert batch.label is not None
        label = np.asarray(batch.label, np.float32)
        if (odd := np.flatnonzero((label != 0) & (label != 1))).size:
            raise DataError(f"batch, row {odd[0]}: the label is {label[odd[0]]:g}; expected 0 or 1")
        if not np.isfinite(batch.dense).all():
            row, column = np.argwhere(~np.isfinite(batch.dense))[0]
            raise DataError(
                f"batch, row {row}: dense column {batch.schema.dense_names[column]!r} is {batch.dense[row, column]}; "
                "expected a finite number"
            )
        return Batch(self._schema, batch.rows, label, batch.dense, batch.sparse, None)

    def learn(self, examples: Batch) -> None:
        self._parts.append(examples)
        if self.waiting < self.batch_size:
            return
        whole, at = Batch.concat(self._parts), 0
        while whole.rows - at >= self.batch_size:
            self._step(whole.slice(at, at + self.batch_size))
            at += self.batch_size
        self._parts = [whole.slice(at, whole.rows)] if at < whole.rows else []

    def _step(self, batch: Batch) -> None:
        looked = self.learner.announce(self.learner.keyed(batch, self.learned // self.batch_size, learns=True))
        logits = self.learner.score(looked).astype(np.float64)
        assert batch.label is not None
        self.progress.add(batch.label, (1.0 / (1.0 + np.exp(-logits))).astype(np.float32))
        self.learner.learn(looked)
        self.learned += batch.rows

    def room(self, examples: int) -> int:
        return -(-examples // self.batch_size) * self.batch_size - self.waiting

    # ---- checkpoints

    def save(self, folder: Path) -> None:
        learner = self.learner
        about = {"learned": self.learned, "begun": learner.begun, "settings": self.settings}
        write_weights(folder / MODEL, about, learner.held, random=True)

    def restored(self, folder: Path, learned: Any) -> Self:
        """Return this model with the state of a checkpoint."""
        place, learner = folder / MODEL, self.learner
        state = read_state(place)
        if state.get("learned") != learned:
            raise DataError(
                f"{place} has learned from {state.get('learned')} examples, but its checkpoint says {learned}"
            )
        kept = state.get("settings")
        for name, mine in self.settings.items():
            if not isinstance(kept, dict) or kept.get(name) != mine:
                there = kept.get(name) if isinstance(kept, dict) else None
                raise PlanError(
                    f"the model in {folder.parent.parent} has {name} {there}, but the model of this job has {mine}; to continue, "
                    "give the model of this job the settings of the folder, or choose another folder"
                )
        read_weights(place, state, learner.held)
        self.learned, learner.begun = int(learned), bool(state.get("begun"))
        return self

    def tables(self) -> dict[str, pa.Table]:
        parts = self._parts
        if not parts:
            return {}
        whole = Batch.concat(parts)
        rows = pa.Table.from_batches([replace(whole, label=None).to_arrow()])
        return {"batch": rows.append_column(CLICKED, pa.array(whole.label, pa.float32()))}

    def take_tables(self, tables: Mapping[str, pa.Table]) -> None:
        self._parts = []
        if (rows := tables.get("batch")) is not None:
            label = rows.column(CLICKED).to_numpy()
            features = one_batch(rows.drop_columns([CLICKED]))
            batch = Batch.from_arrow(replace(self._schema, label=False), features)
            self._parts = [replace(batch, schema=self._schema, label=label)]

    # ---- as a predictor

    @property
    def fields(self) -> Sequence[str]:
        return [name for source in self.learner.sources for name in source.fields]

    def check_schema(self, schema: Schema) -> None:
        if schema.fingerprint != self.learner.schema.fingerprint:
            raise PlanError(other_plan(self.learner.schema.fingerprint, schema.fingerprint))

    def predict_batch(self, batch: Batch) -> npt.NDArray[np.float32]:
        return self.learner.predict(batch)

    def published(self) -> Weights:
        weights = weights_of_run(self.learner)
        return replace(weights, about={**weights.about, "learned": self.learned})


def _folder_of(start: Run | str | Path) -> Path:
    """Return the folder of a finished run. A run on S3 or HDFS is downloaded."""
    if isinstance(start, Run):
        if start.folder is None:
            raise PlanError("start= needs a run with a folder; train it with out='runs/…', and pass start='runs/…'")
        return start.folder
    place, _ = fetched_run(start)
    if not place.is_dir():
        raise SourceError(f"there is no run folder {place} to start from")
    if not (place / "model").is_dir():
        raise PlanError(f"start= needs a finished run, but {place} holds none: its model is missing")
    return place


def _check_start(place: Path, schema: Schema) -> None:
    """Refuse a run with other features, or one whose predictions are corrected: the loop learns without a correction."""
    state = read_state(place / "model")
    if state.get("fingerprint") != schema.fingerprint:
        raise PlanError(f"{place}: " + other_plan(str(state.get("fingerprint")), schema.fingerprint))
    if state.get("calibration") is not None or state.get("shift"):
        raise PlanError(
            f"{place} corrects its predictions (calibrate= or negatives=), which the online loop cannot keep; start from a run "
            "that was trained without these settings"
        )
