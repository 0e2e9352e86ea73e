"""How good are LightGBM, Vowpal Wabbit and FuxiCTR on the sets of `quality_data`?

    python -m benchmarks.quality_peers [--set frappe_x1,…] [--tools lightgbm,vw,fuxictr] [--quick] [--out peers.jsonl]

Every tool trains on the train part, stops early by the AUC of the valid part, and is scored once on the test part.
Each has a few settings; the one of the best valid AUC speaks for the tool, whatever its test AUC is. One thread.

FuxiCTR's wheel holds its trainer, its layers and its sequence models, not the flat models of its model zoo: those are
wired here from the wheel's layers, as their papers say, with the settings published in BARS where there are some.
Needs `pip install lightgbm vowpalwabbit fuxictr`, best in an environment of its own: FuxiCTR brings Ray along.
"""

from __future__ import annotations

import json
import logging
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import quality_data as data
from benchmarks import report

CAP_SECONDS = 720.0  # of one training run; what is cut off says so
TOOLS = ("lightgbm", "vw", "fuxictr")
LETTERS = string.ascii_letters  # VW knows a namespace by its first letter
Probabilities = npt.NDArray[np.float64]
Codes = list[npt.NDArray[np.int64]]  # by part, (rows, fields)


@dataclass
class Result:
    """One training run: what the tool says of the valid and the test rows."""

    valid: Probabilities
    test: Probabilities
    note: str = ""
    cut: bool = False  # stopped by the clock, not by the valid AUC


@dataclass(frozen=True)
class Setting:
    """A model of a tool under a name, and what it is run with."""

    tool: str
    model: str
    run: Callable[[str, Any], Result]
    options: dict[str, Any] = field(default_factory=dict)


# ---- columns as each tool wants them ----------------------------------------------------------------------------


@cache
def part(name: str, which: str, nan: bool, least: int | None) -> data.Arrays:
    options = {} if least is None else {"least": least}
    return data.arrays(name, which, nan=nan, **options)


def parts(name: str, *, nan: bool = False, least: int | None = None) -> list[data.Arrays]:
    return [part(name, which, nan, least) for which in data.PARTS]


def codes(name: str, *, least: int | None = None) -> tuple[Codes, list[str], list[int]]:
    """Single-key fields as numbers from 1, by the words of the train part; 0 is a word it did not have."""
    made = parts(name, least=least)
    fields = made[0].single
    columns: list[Codes] = [[] for _ in made]
    sizes = []
    for each in fields:
        words = np.unique(made[0].sparse[each][0])
        sizes.append(len(words) + 1)
        for out, arrays in zip(columns, made, strict=True):
            keys = arrays.sparse[each][0]
            at = np.minimum(np.searchsorted(words, keys), len(words) - 1)
            out.append(np.where(words[at] == keys, at + 1, 0))
    return [np.stack(found, axis=1) for found in columns], fields, sizes


def rates(coded: Codes, label: npt.NDArray[np.float32], folds: bool) -> list[npt.NDArray[np.float32]]:
    """Click rate and log count of each code. What a train row knows of the train part: the twentieths before its own, or,
    with `folds`, the four fifths without it (more rows, but the rest of a rare code and its count give a label away)."""
    train, blocks = coded[0], 5 if folds else 20
    block = np.arange(len(train)) * blocks // len(train)
    base, weight = float(label.mean()), 20.0
    out: list[list[npt.NDArray[np.float64]]] = [[] for _ in coded]
    for j in range(train.shape[1]):
        size = int(max(c[:, j].max() for c in coded)) + 1
        at = train[:, j] * blocks + block
        n, c = (np.bincount(at, weights=w, minlength=size * blocks).reshape(size, blocks) for w in (None, label))
        for k, table in enumerate(coded):
            code = table[:, j]
            shows, clicks, seen = n.sum(1)[code], c.sum(1)[code], n.sum(1)[code]
            if k == 0 and folds:
                shows, clicks = shows - n[code, block], clicks - c[code, block]
            elif k == 0:
                shows, clicks, seen = ((np.cumsum(x, axis=1) - x)[code, block] for x in (n, c, n))
            out[k] += [(clicks + base * weight) / (shows + weight), np.log1p(seen)]
    return [np.stack(found, axis=1).astype(np.float32) for found in out]


# ---- LightGBM ---------------------------------------------------------------------------------------------------


def lightgbm(name: str, options: dict[str, Any]) -> Result:
    """`encode`: "codes" as LightGBM's own categories, "rates" as click rates and counts, or "both"; `folds`: see `rates`."""
    import lightgbm as lgb

    settings = dict(options)
    encode, folds = settings.pop("encode", "codes"), settings.pop("folds", False)
    made = parts(name, nan=True)
    coded, fields, _ = codes(name)
    blocks: list[list[npt.NDArray[np.float32]]] = [[a.dense] if a.dense.size else [] for a in made]
    names = list(made[0].dense_names)
    if encode in ("codes", "both"):
        names += fields
        for block, c in zip(blocks, coded, strict=True):
            block.append(c.astype(np.float32))
    if encode in ("rates", "both"):
        names += [f"{kind}_{f}" for f in fields for kind in ("rate", "count")]
        for block, r in zip(blocks, rates(coded, made[0].label, folds), strict=True):
            block.append(r)
    x = [np.concatenate(block, axis=1) for block in blocks]
    categories = fields if encode in ("codes", "both") else []
    train = lgb.Dataset(x[0], made[0].label, feature_name=names, categorical_feature=categories)
    valid = lgb.Dataset(x[1], made[1].label, reference=train)
    fixed = {
        "objective": "binary",
        "metric": "auc",
        "num_threads": 1,
        "verbose": -1,
        "seed": 1,
        "feature_pre_filter": False,
    }
    clock = Clock()

    def stop(env: Any) -> None:
        if clock.over():
            raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    model = lgb.train(fixed | settings, train, 3000, [valid], callbacks=[lgb.early_stopping(100, verbose=False), stop])
    best = model.best_iteration
    return Result(
        np.asarray(model.predict(x[1], num_iteration=best)),
        np.asarray(model.predict(x[2], num_iteration=best)),
        f"{best} trees",
        clock.cut,
    )


@dataclass
class Clock:
    """Says when a run has had its time."""

    start: float = field(default_factory=time.perf_counter)
    cut: bool = False

    def over(self) -> bool:
        self.cut = self.cut or time.perf_counter() - self.start > CAP_SECONDS
        return self.cut


# ---- Vowpal Wabbit ----------------------------------------------------------------------------------------------


@cache
def lines(name: str, which: str) -> tuple[list[str], int]:
    """Examples in VW's text format, a namespace a field, and how many namespaces there are."""
    arrays = part(name, which, False, None)
    spaces = dict(zip(arrays.sparse, LETTERS, strict=False))
    words = {}
    for each, (keys, offsets) in arrays.sparse.items():
        text = [f"{key & 0xFFFFFFFFFFFF:x}" for key in keys.tolist()]
        if len(text) == arrays.rows:
            words[each] = text
        else:
            ends = offsets.tolist()
            words[each] = [" ".join(text[a:b]) for a, b in pairwise(ends)]
    out = ["1" if y > 0.5 else "-1" for y in arrays.label.tolist()]
    for each, text in words.items():
        out = [f"{line} |{spaces[each]} {word}" for line, word in zip(out, text, strict=True)]
    if arrays.dense.size:
        numbers = [" ".join(f"n{j}:{v:.5g}" for j, v in enumerate(row)) for row in arrays.dense.tolist()]
        out = [f"{line} |_ {row}" for line, row in zip(out, numbers, strict=True)]
    return out, len(arrays.sparse)


def vw(name: str, options: dict[str, Any]) -> Result:
    """Passes over the train part in time order until the valid AUC has not risen for two of them."""
    from vowpalwabbit import Workspace

    train, spaces = lines(name, "train")
    order = np.arange(len(train))
    letters = LETTERS[:spaces]
    pairs = " ".join(f"-q {a}{b}" for i, a in enumerate(letters) for b in letters[i + 1 :])
    arguments = str(options["args"]).replace("{pairs}", pairs).replace("{each}", letters)
    model = Workspace(f"--loss_function logistic --link logistic --quiet --random_seed 1 {arguments}")
    labels = {which: part(name, which, False, None).label for which in data.PARTS}
    clock, best, result, worse = Clock(), -1.0, None, 0
    rng = np.random.default_rng(1)
    for turn in range(1, int(options.get("passes", 20)) + 1):
        for i in order.tolist():
            model.learn(train[i])
        guess = np.array([model.predict(line[line.index("|") :]) for line in lines(name, "valid")[0]])
        score = data.auc(labels["valid"], guess)
        if score > best:
            best, worse = score, 0
            test = np.array([model.predict(line[line.index("|") :]) for line in lines(name, "test")[0]])
            result = Result(guess, test, f"{turn} passes")
        else:
            worse += 1
        if worse == 2 or clock.over():
            break
        if options.get("shuffle"):
            rng.shuffle(order)
    model.finish()
    assert result is not None
    result.cut = clock.cut
    return result


# ---- FuxiCTR ----------------------------------------------------------------------------------------------------


class Batches:
    """What FuxiCTR's trainer asks of a data loader: a length, and dictionaries of tensors."""

    def __init__(
        self,
        columns: npt.NDArray[np.float64],
        names: list[str],
        label: npt.NDArray[np.float32],
        size: int,
        shuffle: bool,
    ) -> None:
        import torch

        self.columns, self.names, self.size, self.shuffle = torch.from_numpy(columns), names, size, shuffle
        self.label = torch.from_numpy(label)

    def __len__(self) -> int:
        return -(-len(self.label) // self.size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        n = len(self.label)
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for start in range(0, n, self.size):
            rows = order[start : start + self.size]
            taken = self.columns[rows]
            yield {name: taken[:, j] for j, name in enumerate(self.names)} | {"label": self.label[rows]}


@cache
def zoo() -> dict[str, Any]:
    """The flat models, from the wheel's layers."""
    import torch
    from fuxictr.pytorch import layers
    from fuxictr.pytorch.models import BaseModel
    from model_zoo.LongCTR.FinalMLP.FinalMLP import FeatureSelection, InteractionAggregation

    class Flat(BaseModel):
        """Embeddings of all fields; a model adds its `parts` and says how they make a `logit`."""

        def __init__(self, features: Any, o: dict[str, Any], clock: Clock, **base: Any) -> None:
            super().__init__(
                features,
                embedding_regularizer=o.get("l2", 0.0),
                early_stop_patience=o.get("patience", 2),
                **base,
            )
            self.clock = clock
            self.dim = o.get("dim", 10)
            self.wide, self.fields = features.sum_emb_out_dim(), features.num_fields
            self.embedding_layer = layers.FeatureEmbedding(features, self.dim)
            self.parts(features, o)
            self.compile("adam", "binary_crossentropy", o.get("rate", 1e-3))
            self.reset_parameters()
            self.model_to_device()

        def mlp(
            self, width: int, o: dict[str, Any], out: int | None = 1, units: str = "units", drop: str = "drop"
        ) -> Any:
            return layers.MLP_Block(
                input_dim=width,
                output_dim=out,
                hidden_units=list(o.get(units, (400, 400, 400))),
                dropout_rates=o.get(drop, 0.0),
                batch_norm=o.get("norm", False),
            )

        def forward(self, inputs: Any) -> Any:
            x = self.get_inputs(inputs)
            return {"y_pred": self.output_activation(self.logit(x, self.embedding_layer(x)))}

        def eval_step(self) -> None:
            super().eval_step()
            if self.clock.over():
                self._stop_training = True

    class LR(Flat):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            self.line = layers.LogisticRegression(features)

        def logit(self, x: Any, e: Any) -> Any:
            return self.line(x)

    class FM(Flat):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            self.fm = layers.FactorizationMachine(features)

        def logit(self, x: Any, e: Any) -> Any:
            return self.fm(x, e)

    class DNN(Flat):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            self.deep = self.mlp(self.wide, o)

        def logit(self, x: Any, e: Any) -> Any:
            return self.deep(e.flatten(1))

    class WideDeep(DNN):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            super().parts(features, o)
            self.line = layers.LogisticRegression(features)

        def logit(self, x: Any, e: Any) -> Any:
            return super().logit(x, e) + self.line(x)

    class DeepFM(DNN):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            super().parts(features, o)
            self.fm = layers.FactorizationMachine(features)

        def logit(self, x: Any, e: Any) -> Any:
            return super().logit(x, e) + self.fm(x, e)

    class PNN(Flat):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            self.products = layers.InnerProductInteraction(self.fields, output="inner_product")
            self.deep = self.mlp(self.wide + self.fields * (self.fields - 1) // 2, o)

        def logit(self, x: Any, e: Any) -> Any:
            return self.deep(torch.cat([e.flatten(1), self.products(e)], dim=1))

    class XDeepFM(WideDeep):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            super().parts(features, o)
            self.cin = layers.CompressedInteractionNet(self.fields, list(o.get("cin", (64,))))

        def logit(self, x: Any, e: Any) -> Any:
            return super().logit(x, e) + self.cin(e)

    class DCNv2(Flat):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            self.cross = layers.CrossNetV2(self.wide, o.get("cross", 3))
            self.deep = self.mlp(self.wide, o, out=None)
            self.last = torch.nn.Linear(self.wide + o.get("units", (400, 400, 400))[-1], 1)

        def logit(self, x: Any, e: Any) -> Any:
            flat = e.flatten(1)
            return self.last(torch.cat([self.cross(flat), self.deep(flat)], dim=1))

    class FinalMLP(Flat):
        def parts(self, features: Any, o: dict[str, Any]) -> None:
            first, second = list(o.get("gates", ([], [])))
            self.select = FeatureSelection(
                features, self.wide, self.dim, list(o.get("gate_units", (400,))), first, second
            )
            self.one = self.mlp(self.wide, o, out=None, units="units1", drop="drop1")
            self.two = self.mlp(self.wide, o, out=None, units="units2", drop="drop2")
            self.join = InteractionAggregation(o["units1"][-1], o["units2"][-1], num_heads=o.get("heads", 1))

        def logit(self, x: Any, e: Any) -> Any:
            one, two = self.select(x, e.flatten(1))
            return self.join(self.one(one), self.two(two))

    return {
        "LR": LR, "FM": FM, "DNN": DNN, "WideDeep": WideDeep, "DeepFM": DeepFM,
        "PNN": PNN, "xDeepFM": XDeepFM, "DCNv2": DCNv2, "FinalMLP": FinalMLP,
    }  # fmt: skip


def fuxictr(name: str, options: dict[str, Any]) -> Result:
    """`numbers`: dense columns become fields too, each a vector times the number."""
    import torch
    from fuxictr.features import FeatureMap
    from fuxictr.pytorch.torch_utils import seed_everything

    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    seed_everything(options.get("seed", 2021))
    made = parts(name, least=options.get("least"))
    coded, fields, sizes = codes(name, least=options.get("least"))
    features = FeatureMap(name, "")
    for each, size in zip(fields, sizes, strict=True):
        features.features[each] = {"source": "", "type": "categorical", "vocab_size": size}
    if options.get("numbers"):
        fields = fields + list(made[0].dense_names)
        coded = [np.concatenate([c, a.dense], axis=1) for c, a in zip(coded, made, strict=True)]
        for each in made[0].dense_names:
            features.features[each] = {"source": "", "type": "numeric"}
    features.labels = ["label"]
    features.default_emb_dim = options.get("dim", 10)
    features.num_fields = features.get_num_fields()
    features.set_column_index()
    batches = [
        Batches(c.astype(np.float64), fields, a.label, 16_384 if k else options.get("batch", 4096), k == 0)
        for k, (c, a) in enumerate(zip(coded, made, strict=True))
    ]
    clock = Clock()
    with tempfile.TemporaryDirectory() as kept:
        (Path(kept) / name).mkdir()
        base = {"verbose": 0, "model_root": kept, "metrics": ["AUC"], "gpu": -1, "monitor": "AUC"}
        model = zoo()[options["model"]](features, options, clock, **base)
        if options.get("evaluate"):  # so many times an epoch
            model._eval_steps = max(1, len(batches[0]) // options["evaluate"])
        model.fit(batches[0], epochs=options.get("epochs", 100), validation_data=batches[1])
        guesses = [np.asarray(model.predict(b), np.float64).reshape(-1) for b in batches[1:]]
    return Result(guesses[0], guesses[1], f"{model._epoch_index + 1} epochs", clock.cut)


# ---- settings ---------------------------------------------------------------------------------------------------


def of_lightgbm(**options: Any) -> Setting:
    return Setting("lightgbm", "LightGBM", lightgbm, options)


def of_vw(model: str, args: str, **options: Any) -> Setting:
    return Setting("vw", model, vw, {"args": args, **options})


def of_fuxictr(model: str, **options: Any) -> Setting:
    return Setting("fuxictr", model, fuxictr, {"model": model, **options})


LINEAR, PAIRS, FFM = "VW linear", "VW pairs", "VW low-rank"
DEEP = ("DNN", "WideDeep", "DeepFM", "DCNv2", "PNN", "xDeepFM")
SMALL = {"batch": 1024, "units": (200, 200), "drop": 0.2, "cin": (32,), "evaluate": 4, "patience": 3}

SETTINGS: dict[str, list[Setting]] = {
    "criteo_1tb_80k": [
        of_lightgbm(encode="codes", learning_rate=0.03, num_leaves=31, min_data_in_leaf=50, cat_smooth=50, cat_l2=30),
        of_lightgbm(encode="rates", learning_rate=0.02, num_leaves=15, min_data_in_leaf=100, feature_fraction=0.4),
        of_lightgbm(encode="both", learning_rate=0.02, num_leaves=15, min_data_in_leaf=100, feature_fraction=0.4),
        *(of_lightgbm(encode="rates", folds=folds, learning_rate=0.02, num_leaves=7, min_data_in_leaf=100, lambda_l2=10,
                      feature_fraction=0.3, bagging_fraction=0.7, bagging_freq=1) for folds in (False, True)),
        of_vw(LINEAR, "-b 22 -l 0.1"),
        of_vw(LINEAR, "-b 22 -l 0.02"),
        of_vw(LINEAR, "-b 22 --ftrl --ftrl_alpha 0.02 --ftrl_beta 1 --l1 1"),
        of_vw(PAIRS, "-b 24 -l 0.02 {pairs}", passes=4),
        of_fuxictr("LR", batch=1024, rate=1e-3, l2=0.0, evaluate=2, patience=3),
        of_fuxictr("LR", batch=1024, rate=1e-3, l2=1e-3, evaluate=2, patience=3),
        of_fuxictr("FM", batch=1024, rate=1e-3, l2=1e-3, evaluate=2, patience=3),
        *(of_fuxictr(m, l2=l2, **SMALL) for m in DEEP for l2 in (1e-3, 1e-2)),
        of_fuxictr("FinalMLP", batch=1024, rate=1e-3, l2=1e-3, units1=(200,), units2=(100,), drop1=0.2, drop2=0.2,
                   heads=4, evaluate=4, patience=3),
    ],
    "criteo_attribution_165k": [
        of_lightgbm(encode="codes", learning_rate=0.05, num_leaves=31, min_data_in_leaf=20),
        of_lightgbm(encode="codes", learning_rate=0.05, num_leaves=31, min_data_in_leaf=50, max_cat_to_onehot=40),
        of_lightgbm(encode="both", learning_rate=0.05, num_leaves=15, min_data_in_leaf=100),
        of_lightgbm(encode="both", folds=True, learning_rate=0.05, num_leaves=15, min_data_in_leaf=100),
        of_vw(LINEAR, "-b 18 -l 0.1", passes=5),
        of_vw(PAIRS, "-b 20 -l 0.1 {pairs}", passes=5),
        of_vw(PAIRS, "-b 20 -l 0.02 {pairs}", passes=5),
        of_vw(PAIRS, "-b 22 -l 0.05 {pairs} --cubic :::", passes=5),
        of_fuxictr("LR", batch=2048, epochs=20),
        of_fuxictr("FM", batch=2048, epochs=20),
        *(of_fuxictr(m, batch=2048, units=(200, 200), drop=0.1, epochs=20) for m in DEEP),
        of_fuxictr("DeepFM", batch=2048, units=(100, 100), l2=1e-4, epochs=20),
        of_fuxictr("FinalMLP", batch=2048, units1=(200,), units2=(100,), drop1=0.1, drop2=0.1, heads=4, epochs=20),
    ],
    "open_bandit_60k": [
        of_lightgbm(encode="codes", learning_rate=0.02, num_leaves=7, min_data_in_leaf=200),
        *(of_lightgbm(encode="rates", folds=folds, learning_rate=0.02, num_leaves=7, min_data_in_leaf=200)
          for folds in (False, True)),
        of_vw(LINEAR, "-b 18 -l 0.1", passes=5),
        of_vw(LINEAR, "-b 18 -l 0.01", passes=8),
        of_vw(PAIRS, "-b 20 -l 0.02 {pairs}", passes=5),
        of_fuxictr("LR", batch=1024, epochs=20, numbers=True, patience=3),
        of_fuxictr("FM", batch=1024, l2=1e-3, epochs=20, numbers=True, patience=3),
        of_fuxictr("DeepFM", batch=1024, l2=1e-3, units=(64, 64), drop=0.2, epochs=20, numbers=True, patience=3),
        of_fuxictr("DCNv2", batch=1024, l2=1e-3, units=(64, 64), drop=0.2, epochs=20, numbers=True, patience=3),
    ],
    "frappe_x1": [
        of_lightgbm(encode="codes", learning_rate=0.1, num_leaves=127, min_data_in_leaf=5, min_data_per_group=5,
                    cat_smooth=1, cat_l2=1, max_cat_threshold=256),
        of_lightgbm(encode="both", learning_rate=0.1, num_leaves=127, min_data_in_leaf=20, min_data_per_group=20,
                    max_cat_threshold=128),
        of_vw(LINEAR, "-b 20 -l 0.5", passes=10),
        of_vw(PAIRS, "-b 24 -l 0.5 {pairs}", passes=20, shuffle=True),
        of_vw(PAIRS, "-b 24 -l 0.1 {pairs}", passes=20, shuffle=True),
        of_vw(FFM, "-b 24 -l 0.1 --lrqfa {each}4", passes=10, shuffle=True),
        of_fuxictr("FinalMLP", l2=0.05, units1=(400,), units2=(100,), drop1=0.4, drop2=0.4, norm=True, heads=5,
                   gates=(["user"], ["item"]), gate_units=(400,)),
        of_fuxictr("DeepFM", l2=0.05, drop=0.2, norm=True),
        of_fuxictr("DCNv2", l2=0.05, drop=0.4, norm=True, cross=4),
        of_fuxictr("DNN", l2=0.05, drop=0.2, norm=True),
        of_fuxictr("xDeepFM", l2=0.1, drop=0.2, norm=True),
        of_fuxictr("PNN", l2=0.05, drop=0.2, norm=True),
        of_fuxictr("FM", l2=0.01),
        of_fuxictr("LR", l2=0.0),
    ],
    "adlog": [
        of_lightgbm(encode="codes", learning_rate=0.1, num_leaves=63, min_data_in_leaf=100, cat_smooth=20, cat_l2=20),
        of_lightgbm(encode="both", learning_rate=0.1, num_leaves=31, min_data_in_leaf=100, feature_fraction=0.5),
        of_lightgbm(encode="rates", learning_rate=0.1, num_leaves=63, min_data_in_leaf=100, feature_fraction=0.5),
        of_vw(LINEAR, "-b 22 -l 0.1", passes=3),
        of_vw(LINEAR, "-b 22 -l 0.02", passes=4),
        of_vw(PAIRS, "-b 24 -l 0.02 -q fe -q fc -q pc -q ue -q ve -q st", passes=3),
    ],
}  # fmt: skip


# ---- the question -----------------------------------------------------------------------------------------------


def score(name: str, setting: Setting) -> dict[str, Any]:
    """Train, and say how well the valid and the test rows were ranked."""
    start = time.perf_counter()
    result = setting.run(name, setting.options)
    seconds = time.perf_counter() - start
    valid, test = (part(name, which, False, None).label for which in ("valid", "test"))
    found = data.auc(test, result.test)
    return {
        "set": name,
        "tool": setting.tool,
        "model": setting.model,
        "valid_auc": round(data.auc(valid, result.valid), 5),
        "test_auc": round(found, 5),
        "test_error": round(data.auc_error(test, found), 5),
        "test_logloss": round(data.logloss(test, result.test), 5),
        "seconds": round(seconds, 1),
        "note": result.note + (", cut by the clock" if result.cut else ""),
        "options": setting.options,
    }


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each model the run of the best valid AUC, the best test AUC first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        label = f"{row['tool']} {row['model']}"
        if label not in found or row["valid_auc"] > found[label]["valid_auc"]:
            found[label] = row
    return sorted(found.values(), key=lambda row: -row["test_auc"])


def main() -> None:
    ask = report.options(__doc__)
    ask.add_argument("--set", default=",".join(SETTINGS), help="names by comma")
    ask.add_argument("--tools", default=",".join(TOOLS))
    ask.add_argument("--models", default="", help="of FuxiCTR; all unless given")
    ask.add_argument("--quick", action="store_true", help="the first setting of each tool")
    ask.add_argument("--out", type=Path, help="append every run to this file, one JSON object a line")
    chosen = ask.parse_args()
    peers: dict[str, float] = {}
    for name in chosen.set.split(","):
        data.known(name)
        rows = []
        done: set[str] = set()
        for setting in SETTINGS[name]:
            wanted = setting.tool in chosen.tools.split(",") and (
                setting.tool != "fuxictr" or not chosen.models or setting.model in chosen.models.split(",")
            )
            if not wanted or (chosen.quick and setting.tool in done):
                continue
            done.add(setting.tool)
            row = score(name, setting)
            rows.append(row)
            if chosen.out:
                with chosen.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            print(f"  {row['model']}: valid {row['valid_auc']}, test {row['test_auc']}, {row['seconds']} s", flush=True)
        print(f"\n{name}, one thread, {report.machine(1)}\n")
        columns = ("tool", "valid_auc", "test_auc", "test_error", "test_logloss", "seconds", "note")
        report.table(("model", *columns), [(row["model"], *(row[c] for c in columns)) for row in best(rows)])
        print()
        peers |= {f"{name} {row['tool']} {row['model']}": row["test_auc"] for row in best(rows)}
    report.finish(None, peers, "test AUC", cores=1)


if __name__ == "__main__":
    main()
