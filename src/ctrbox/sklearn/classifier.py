"""Defines ``cb.Classifier``: a click model for dataframes that follows scikit-learn's conventions and does not need it.

clf = cb.Classifier("DeepFM", dim=8).fit(frame, clicked)
p = clf.predict_proba(frame)[:, 1]

What becomes of a column (``sklearn/frames.py`` reads it, ``columns_`` says what was found; ``categorical`` and ``numeric``
overrule it):

    text, bool, category   keys
    whole number           keys; with more than 50 distinct values also a number; where more than half of the values
                           are distinct, a number alone
    float                  a number: standardized, cut to ±10, and the keys of its 20 quantiles
    list                   keys, one for each element
    time, date             keys of hour and weekday

A missing value has a key of its own; a missing number counts as the mean. Keys never seen in ``fit`` have their initial
vectors. Rows are shuffled, and ``valid`` of each class are held out to stop at the best epoch; with ``shuffle=False``
rows are in the order of time and the newest are held out.

``save`` and ``load`` keep a fitted classifier in a folder (``sklearn/classifier_folder.py``). A pickle or a copy carries the
parameters and the bytes of that folder's files, never the weights as Python objects.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from ctrbox import models
from ctrbox.arguments.names import named_arguments, nearest
from ctrbox.arguments.numbers import share
from ctrbox.columns.batch import Schema
from ctrbox.compiled_plan.plan import compile as compile_plan
from ctrbox.embed.memory.memory_table import MemoryTable
from ctrbox.errors import DataError, PlanError
from ctrbox.files.urls import local_path
from ctrbox.optimizers.of_table_rows import Adam
from ctrbox.plan.language.expressions import col
from ctrbox.plan.language.features import FeatureSet
from ctrbox.predict.tables_of_fields import reads_of
from ctrbox.sklearn.classifier_folder import (
    VIEW,
    classes_of,
    files_of,
    frame_of,
    json_of,
    of_classes,
    of_frame,
    read_description,
    read_run,
    unpacked,
    write_folder,
)
from ctrbox.sklearn.column_importance import column_importances
from ctrbox.sklearn.frames import (
    Frame,
    InputError,
    features_of,
    labels_of,
    not_fitted,
    stratified,
    weights_of,
)
from ctrbox.train.run import Run
from ctrbox.train.settings import Settings
from ctrbox.train.trainer import Trainer
from ctrbox.views.view import View

STEPS = 50  # about, of an epoch, where no batch size is given
BATCHES = (32, 4096)
CHUNK = 65_536  # rows predicted at once
WINDOW = 1 << 20  # rows within which each epoch is shuffled anew
LABEL, WEIGHT = "#label", "#weight"  # a frame read by its own names has no # in them
FITTED = ("run_", "classes_", "n_features_in_", "feature_names_in_", "columns_", "_frame", "_importances")


def shuffled_together(rows: int, batch: int) -> int:
    """Compute how many rows are shuffled together: whole batches, at most `WINDOW` rows, and no more than hold all rows."""
    return min(-(-rows // batch), max(1, WINDOW // batch)) * batch


@named_arguments
class Classifier:
    """A click model with the interface of a scikit-learn classifier.

    ``model``      name of a model of ``cb.models``, or a function that makes a module from a schema; ``options`` are further
                   arguments of a named model
    ``lr``         learning rate of Adam for the dense weights, above 0; default: 0.001
    ``table_lr``   learning rate of Adagrad for vectors and first-order weights, above 0; default: those of a new table, 0.02
                   and 0.05
    ``valid``      share of the rows that is held out to stop at the best epoch; with 0, all epochs train on all rows
    ``calibrate``  correction of the probabilities after training, as for ``Trainer.fit``. "platt" and "isotonic" fit a map
                   from scores to click rates to a tenth of the training rows, which is held back for this. "weights",
                   "intercept" or a number corrects for ``sample_weight``: it adds one number to every logit. With None, there
                   is no correction

    ``fit`` sets these attributes: ``classes_``, ``n_features_in_``, ``feature_names_in_``, ``columns_`` (what each column
    became), ``feature_importances_`` and ``run_``, which is the ``cb.Run``.
    """

    _estimator_type = "classifier"

    def __init__(
        self,
        model: str | Callable[[Schema], nn.Module] = "DeepFM",
        *,
        dim: int = 8,
        options: dict[str, Any] | None = None,
        epochs: int = 10,
        batch_size: int | None = None,
        lr: float = 1e-3,
        table_lr: float | None = None,
        valid: float = 0.1,
        patience: int = 2,
        shuffle: bool = True,
        categorical: Sequence[str] | None = None,
        numeric: Sequence[str] | None = None,
        calibrate: str | float | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        # As given, unchecked: scikit-learn's clone asks for the very same objects back.
        self.model = model
        self.dim = dim
        self.options = options
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.table_lr = table_lr
        self.valid = valid
        self.patience = patience
        self.shuffle = shuffle
        self.categorical = categorical
        self.numeric = numeric
        self.calibrate = calibrate
        self.seed = seed
        self.threads = threads

    # ---- what scikit-learn asks of an estimator ----

    @classmethod
    def _names(cls) -> list[str]:
        return [n for n in inspect.signature(cls.__init__).parameters if n != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the classifier by name, as scikit-learn expects."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Classifier:
        """Change parameters by name and return the classifier, as scikit-learn expects."""
        known = self._names()
        for name in params:
            if name not in known:
                raise InputError(
                    f"Classifier has no parameter {name!r}{nearest(name, known)}; it has {', '.join(known)}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        default = inspect.signature(type(self).__init__).parameters
        shown = [f"{n}={v!r}" for n, v in self.get_params().items() if repr(v) != repr(default[n].default)]
        return f"Classifier({', '.join(shown)})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "run_")

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn calls this, so it is there; CTRBox itself never imports it.
        tags = sys.modules["sklearn.utils"]
        return tags.Tags(
            estimator_type="classifier",
            target_tags=tags.TargetTags(required=True),
            classifier_tags=tags.ClassifierTags(multi_class=False),
            input_tags=tags.InputTags(categorical=True, string=True, allow_nan=True),
        )

    # ---- fit and predict ----

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:  # noqa: N803 - scikit-learn's name
        """Train on a dataframe (any object that provides Arrow data) or a 2-D array, and labels of two classes."""
        share("valid", self.valid, 0, 0.9)
        frame = Frame.of(X, self.categorical, self.numeric)
        classes, clicked = labels_of(y, frame.rows)
        weight = weights_of(sample_weight, frame.rows)
        if self.shuffle:
            order, held = stratified(clicked, self.valid, self.seed)
        else:
            order, held = np.arange(frame.rows), min(round(frame.rows * self.valid), frame.rows - 1)
        table = frame.table.take(pa.array(order)).append_column(LABEL, pa.array(clicked[order]))
        if weight is not None:
            table = table.append_column(WEIGHT, pa.array(weight[order]))
        sparse, dense = features_of(frame)
        features = FeatureSet(
            label=col(LABEL), weight=None if weight is None else col(WEIGHT), sparse=sparse, dense=dense
        )
        plan = compile_plan(View(table, name=VIEW), features, threads=self.threads)
        rows = len(order) - held
        rows -= Settings(calibrate=self.calibrate).calibration_rows(rows)
        batch = self._batch(rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            module = self._module(plan.schema)
            dims = reads_of(module).dims
            tables = {d: self._table(d) for d in {*dims.values()}}
            trainer = Trainer(
                module,
                {name: tables[dim] for name, dim in dims.items()},
                optimizer=Adam(lr=self.lr),
                threads=self.threads,
            )
            run = trainer.fit(
                plan,
                valid=held / len(order),
                epochs=self.epochs,
                batch_size=batch,
                shuffle=shuffled_together(rows, batch) if self.shuffle else 0,
                patience=self.patience if held else None,
                calibrate=self.calibrate,
                seed=self.seed,
                by={},
            )
        self._keep(run, classes, frame.without_rows(), None)
        return self

    def _keep(self, run: Run, classes: np.ndarray, frame: Frame, importances: np.ndarray | None) -> None:
        """Set everything that a fitted classifier has."""
        self.run_, self.classes_, self.n_features_in_ = run, classes, len(frame.columns)
        self.columns_ = frame.kinds
        self._frame, self._importances = frame, importances
        if frame.named:
            self.feature_names_in_ = np.array(frame.names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _check_fitted(self) -> None:
        if not hasattr(self, "run_"):
            raise not_fitted()

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the probability of each of ``classes_`` as an array (rows, 2)."""
        self._check_fitted()
        table = self._frame.read(X)
        both = np.empty((table.num_rows, 2))
        for at in range(0, table.num_rows, CHUNK):
            part = table.slice(at, CHUNK).combine_chunks()
            both[at : at + part.num_rows, 1] = self.run_.predict_batch(self.run_.plan.run(part))
        both[:, 0] = 1 - both[:, 1]
        return both

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the more probable class of each row."""
        p = self.predict_proba(X)
        found: np.ndarray = self.classes_[(p[:, 1] > 0.5).astype(np.int64)]
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the accuracy, as classifiers of scikit-learn do. To get the AUC, use scoring="roc_auc" in scikit-learn."""
        found = self.predict(X)
        given = np.asarray(y).reshape(-1)
        if len(given) != len(found):
            raise InputError(f"X has {len(found):,} rows and y has {len(given):,}; expected one label for each row")
        return float(np.average(found == given, weights=weights_of(sample_weight, len(found))))

    @property
    def feature_importances_(self) -> np.ndarray:
        """Permutation importance of each column of X: how much the ROC AUC falls if the values of the column are shuffled.

        It is measured on up to 5,000 held-out rows, or on training rows if no rows were held out, and averaged over 3
        permutations that ``seed`` decides, so it is the same every time. It is computed at the first access, or when the
        classifier is saved or pickled, and then kept. To compute it, the classifier predicts these rows 3 times for each
        column. The values do not add up to 1, and the value of a useless column may be below 0.
        """
        self._check_fitted()
        if self._importances is None:
            self._importances = column_importances(self.run_, self._frame, self.seed)
        return self._importances.copy()

    # ---- files, copies and pickles ----

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a fitted classifier to a new folder, and return the path of the folder. It contains no rows of the dataframe."""
        self._check_fitted()
        params = {n: json_of(f"{n}=", v) for n, v in self.get_params().items() if n != "model"}
        function = None if isinstance(self.model, str) else getattr(self.model, "__qualname__", repr(self.model))
        model = self.model if function is None else None
        place = local_path(path, "a saved classifier")
        write_folder(place, self.run_, {"params": params | {"model": model}, "function": function} | self._found())
        return place

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: Callable[[Schema], nn.Module] | None = None) -> Classifier:
        """Read a classifier that ``save`` wrote. ``model``: the function that made its model, if the model is one of your own."""
        place = local_path(path, "a saved classifier")
        found = read_description(place)
        if (found.get("function") is None) != (model is None):
            wanted = (
                "leave model= out" if model is not None else f"give it: Classifier.load(…, model={found['function']})"
            )
            raise PlanError(
                f"{place} was saved with model={found.get('function') or found['params']['model']}; {wanted}"
            )
        made = cls(**{**found["params"], **({} if model is None else {"model": model})})
        made._restore(place, found)
        return made

    def _found(self) -> dict[str, Any]:
        """What fit found, beside the run."""
        importances = self.feature_importances_.tolist()
        return {"classes": of_classes(self.classes_), "frame": of_frame(self._frame), "importances": importances}

    def _restore(self, place: Path, found: Mapping[str, Any]) -> None:
        run = read_run(place, found, None if isinstance(self.model, str) else self._module)
        run.folder = None  # it may go away, and holds no record of the training
        try:
            kept = classes_of(found["classes"]), frame_of(found["frame"]), np.array(found["importances"], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{place} does not describe a classifier: {error!r}") from None
        self._keep(run, *kept)

    def __getstate__(self) -> dict[str, Any]:
        """The parameters, and of a fitted classifier the bytes of the files that ``save`` writes."""
        state: dict[str, Any] = {"params": self.get_params()}
        known = {*state["params"], *FITTED}
        state["others"] = {name: value for name, value in vars(self).items() if name not in known}
        if hasattr(self, "run_"):
            with tempfile.TemporaryDirectory(prefix="ctrbox-classifier-") as folder:
                write_folder(Path(folder) / "saved", self.run_, self._found())
                state["files"] = files_of(Path(folder) / "saved")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state["params"] | state["others"])
        if "files" in state:
            with unpacked(state["files"]) as folder:
                self._restore(Path(folder), read_description(Path(folder)))

    # ---- parts of fit ----

    def _batch(self, rows: int) -> int:
        if self.batch_size is not None:
            return self.batch_size
        batch = min(max(rows // STEPS, BATCHES[0]), BATCHES[1])
        # Normalization over a batch cannot learn from a last batch of one row.
        return next(b for b in range(batch, batch + rows + 2) if rows % b != 1 or rows == 1)

    def _table(self, dim: int) -> MemoryTable:
        table = MemoryTable(dim, seed=self.seed)
        if self.table_lr is not None:
            table.set_lr(self.table_lr)
        return table

    def _module(self, schema: Schema) -> nn.Module:
        if not isinstance(self.model, str):
            if isinstance(self.model, nn.Module) or not callable(self.model):
                raise PlanError(
                    f"model must be a name of cb.models or a function from a schema to a module, got {self.model!r}"
                )
            return self.model(schema)
        known = models.MODELS.get(self.model)
        takes_dim = known is not None and "dim" in inspect.signature(known).parameters
        return models.build(self.model, schema, {**({"dim": self.dim} if takes_dim else {}), **(self.options or {})})
