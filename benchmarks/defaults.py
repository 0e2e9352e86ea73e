"""Which defaults hold on every data set? Compares settings of tables, batches and Deep FFM on validation rows.

    python -m benchmarks.defaults [--arm classifier] [--set frappe_x1] [--model LR] [--data FOLDER] [--log fits.jsonl] [--quick]

Four arms: ``cb.Classifier`` (several epochs), one epoch of ``cb.Trainer``, ``cb.DeepFFM``, and ``cb.DeepFFM(ffm=None)``. An arm
runs in three rounds of successive halving. The first trains every candidate with one seed and some of the models. The second
trains the best of them, and the defaults, with three seeds and all models. A candidate's regret on a set and model is
the AUC that it loses there against the best candidate; the mean regret over sets and models ranks candidates. The third round
trains the first and the second of that ranking, the defaults, and for each set and model the candidate that was best on
it ("tuned"), with five seeds on the rows before the test rows, and scores the test rows. Nothing is chosen after that.

open_bandit_60k takes part in the third round only: the 46 clicks of its validation rows rank nothing. Each fit is appended to
``--log`` and not repeated when the command runs again. One thread; about half an hour of CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import defaults_data, quality_data, report

Options = dict[str, Any]
UNRANKED = ("open_bandit_60k",)
KEPT, SEEDS, FINAL_SEEDS = 3, 3, 5


def classifier(set_: str, model: str, options: Options, seed: int, final: bool) -> float:
    """Fit a classifier; the options are those of its table and of itself."""
    import ctrbox as cb
    from ctrbox.sklearn import classifier as module

    rows = defaults_data.frame(set_, final)
    o = dict(options)
    moved: Options = {"optimizer": adagrad(o.pop("vectors")), "linear": adagrad(o.pop("linear"))}
    init, steps = o.pop("init", 0.01), o.pop("steps", module.STEPS)

    def made(dim: int, **given: Any) -> Any:
        return cb.MemoryTable(dim, **given | moved | {"init": init, "threads": 1})

    # A classifier has no argument for every one of these, so that its table is replaced.
    with mock.patch.object(module, "MemoryTable", made), mock.patch.object(module, "STEPS", steps):
        fitted = cb.Classifier(model, seed=seed, threads=1, **o).fit(rows.learn, rows.learn_labels)
    return quality_data.auc(rows.score_labels, fitted.predict_proba(rows.score)[:, 1])


def adagrad(pair: tuple[float, float]) -> Any:
    """Adagrad with this learning rate and initial sum of squares."""
    import ctrbox as cb

    return cb.Adagrad(lr=pair[0], initial=pair[1])


def one_epoch(set_: str, model: str, options: Options, seed: int, final: bool) -> float:
    """Train once over the log in its order, with the trainer's other defaults."""
    import torch

    import ctrbox as cb

    learn, score = defaults_data.plans(set_, final)
    torch.manual_seed(seed)
    made = getattr(cb.models, model)(learn.schema)
    vectors, linear = adagrad(options["vectors"]), adagrad(options["linear"])
    dim, init = 0 if model == "LR" else 16, options.get("init", 0.01)
    table = cb.MemoryTable(dim, optimizer=vectors, linear=linear, init=init, seed=seed, threads=1)
    dense = cb.optim.Adam(lr=options.get("lr", 1e-3))
    run = cb.Trainer(made, table, optimizer=dense, threads=1).fit(learn, valid=score, seed=seed, explain=False)
    return float(run.metrics["auc"])


# The old defaults of Deep FFM; a candidate has them wherever it names no setting of its own.
FFM_BEFORE: Options = {"hidden": (), "norm": False, "k": 4, "lr": 0.02, "ffm": 0.12, "nn": 0.05, "ffm_init": 0.1}


def deep_ffm(set_: str, model: str, options: Options, seed: int, final: bool) -> float:
    """Learn with the CPU engine: one epoch, or three with the model "3 epochs"."""
    import ctrbox as cb

    data = defaults_data.stream(set_, final)
    o = FFM_BEFORE | options
    engine = cb.DeepFFM(data.schema, bits=20, seed=seed, **o)
    for _ in range(3 if model == "3 epochs" else 1):
        engine.learn(data.learn)
    return quality_data.auc(data.score_labels, engine.predict(data.score))


@dataclass(frozen=True)
class Arm:
    fit: Callable[[str, str, Options, int, bool], float]
    sets: Sequence[str]
    first: Sequence[str]  # models of the first round
    models: Sequence[str]
    before: str  # the candidate with which all others are compared: the defaults of version 0.2
    candidates: Mapping[str, Options]


Pair = tuple[float, float]  # learning rate and initial sum of squares of Adagrad


def same(*pairs: Pair, **more: Any) -> dict[str, Options]:
    """Candidates that move vectors and first-order weights alike."""
    return {name_of(pair, **more): {"vectors": pair, "linear": pair, **more} for pair in pairs}


def apart(linear: Pair, *vectors: Pair, **more: Any) -> dict[str, Options]:
    """Candidates with one optimizer for first-order weights and another one for vectors."""
    return {
        f"{name_of(pair, **more)}, linear {name_of(linear)}": {"vectors": pair, "linear": linear, **more}
        for pair in vectors
    }


def name_of(pair: Pair, **more: Any) -> str:
    return f"{pair[0]:g} / {pair[1]:g}" + "".join(f" {name} {value:g}" for name, value in more.items())


def ffms(base: Options, **changes: Sequence[Any]) -> dict[str, Options]:
    """The base, and the base with one option changed to each of its values."""
    made = {words(base): base}
    for name, values in changes.items():
        for value in values:
            made |= {words(base | {name: value}): base | {name: value}}
    return made


def words(options: Options) -> str:
    return " ".join(f"{name} {value}" for name, value in options.items()).replace(", ", ",") or "no network"


ARMS = {
    "classifier": Arm(
        classifier, defaults_data.FRAMES, ("LR", "DeepFM"), ("LR", "FM", "DeepFM", "DCNv2"), "0.05 / 0",
        {
            **same((0.05, 0.0), (0.01, 0.1), (0.02, 0.1), (0.02, 1.0), (0.05, 1.0)),
            **apart((0.05, 1.0), (0.01, 0.1), (0.02, 0.1), (0.02, 1.0)),
            **apart((0.05, 1.0), (0.02, 0.1), lr=2e-3),
            **apart((0.05, 1.0), (0.02, 0.1), steps=100),
            **apart((0.05, 1.0), (0.01, 0.1), steps=200),
        },
    ),
    "one epoch": Arm(
        one_epoch, defaults_data.FRAMES, ("LR", "DeepFM"), ("LR", "FM", "DeepFM", "DCNv2"), "0.05 / 0",
        {
            **same((0.05, 0.0), (0.01, 0.1), (0.02, 0.1), (0.02, 1.0), (0.05, 1.0)),
            **apart((0.05, 1.0), (0.01, 0.1), (0.02, 0.1), (0.02, 1.0)),
        },
    ),
    "ffm": Arm(
        deep_ffm, defaults_data.STREAMS, ("1 epoch",), ("1 epoch", "3 epochs"), "no network",
        {
            "no network": {},
            **ffms({"hidden": (24, 24)}, lr=[0.05, 0.1], nn=[0.1]),
            **ffms({"hidden": (24, 24), "lr": 0.05}, nn=[0.1], hidden=[(64, 32)], ffm_init=[0.03]),
            **ffms({"hidden": (24, 24), "nn": 0.1}, ffm=[0.06]),
            **ffms({"hidden": (24, 24), "norm": True}, nn=[0.02]),
        },
    ),
    "ffm=None": Arm(
        deep_ffm, defaults_data.STREAMS, ("1 epoch",), ("1 epoch", "3 epochs"), "ffm None hidden ()",
        {
            **ffms({"ffm": None, "hidden": ()}, lr=[0.05, 0.1, 0.2]),
            **ffms({"ffm": None, "hidden": (24, 24)}, lr=[0.05]),
            **ffms({"ffm": None, "hidden": (24, 24), "lr": 0.1}, nn=[0.1]),
        },
    ),
}  # fmt: skip

Key = tuple[str, str, str, str, int, bool]


class Fits:
    """AUCs by arm, set, model, candidate, seed and round; a log file keeps them."""

    def __init__(self, log: Path | None) -> None:
        self.log = log
        self.known: dict[Key, float] = {}
        for line in log.read_text().splitlines() if log and log.exists() else ():
            arm, set_, model, name, seed, final, auc, _ = json.loads(line)
            self.known[arm, set_, model, name, seed, final] = auc

    def auc(self, arm: str, set_: str, model: str, name: str, seed: int, final: bool) -> float:
        key = (arm, set_, model, name, seed, final)
        if key not in self.known:
            began = time.process_time()
            self.known[key] = ARMS[arm].fit(set_, model, ARMS[arm].candidates[name], seed, final)
            if self.log:
                with self.log.open("a") as file:
                    file.write(json.dumps([*key, self.known[key], round(time.process_time() - began, 2)]) + "\n")
        return self.known[key]


def regrets(
    arm: str, fits: Fits, sets: Sequence[str], models: Sequence[str], names: Sequence[str], seeds: int
) -> dict[str, float]:
    """The mean AUC that each candidate loses against the best one of a set and model; the best candidate first."""
    lost: dict[str, list[float]] = {name: [] for name in names}
    for set_ in sets:
        for model in models:
            auc = {n: statistics.fmean(fits.auc(arm, set_, model, n, s, False) for s in range(seeds)) for n in names}
            for name in names:
                lost[name].append(max(auc.values()) - auc[name])
    return dict(sorted(((n, statistics.fmean(v)) for n, v in lost.items()), key=lambda found: found[1]))


def mean(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4f} ± {error:.4f}"


def choose(arm: str, fits: Fits, asked: argparse.Namespace) -> dict[str, Any]:
    """Run the three rounds of one arm; print them, and return what is chosen with its test AUCs."""
    this = ARMS[arm]
    seeds, final_seeds = (1, 1) if asked.quick else (SEEDS, FINAL_SEEDS)
    sets = [s for s in this.sets if not asked.set or s in asked.set]
    ranked = [s for s in sets if s not in UNRANKED]
    models = [m for m in this.models if m in asked.model] if asked.model else list(this.models)
    first = regrets(arm, fits, ranked, this.first, list(this.candidates), 1)
    print(f"\n{arm}, first round: mean regret, one seed, {', '.join(this.first)}")
    report.table(["candidate", "regret"], [[n, f"{r:.4f}"] for n, r in first.items()])
    if asked.rounds == 1:
        return {"first round": first}
    kept = list(dict.fromkeys([*list(first)[:KEPT], this.before]))
    second = regrets(arm, fits, ranked, models, kept, seeds)
    print(f"\n{arm}, second round: mean regret, {seeds} seeds, {', '.join(models)}")
    report.table(["candidate", "regret"], [[n, f"{r:.4f}"] for n, r in second.items()])
    best, runner = (n for n in [*second, this.before][:2])
    lines, lost = [], {}
    for set_ in sets:
        for model in models:
            tuned = best if set_ in UNRANKED else best_on(arm, fits, set_, model, kept, seeds)
            scores = {
                name: [fits.auc(arm, set_, model, name, seed, True) for seed in range(final_seeds)]
                for name in dict.fromkeys([best, runner, this.before, tuned])
            }
            lost[f"{set_} {model}"] = statistics.fmean(scores[tuned]) - statistics.fmean(scores[best])
            lines.append([set_, model, *(mean(scores[n]) for n in (best, runner, this.before, tuned)), tuned])
    print(f"\n{arm}, test AUC, mean and standard error of {final_seeds} seeds; chosen: {best}; runner-up: {runner}")
    report.table(["set", "model", "chosen", "runner-up", "before", "tuned", "tuned on validation"], lines)
    return {"chosen": best, "runner-up": runner, "lost to tuned": lost}


def best_on(arm: str, fits: Fits, set_: str, model: str, kept: Sequence[str], seeds: int) -> str:
    """The candidate that is best on the validation rows of one set, of all that the first round tried with this model."""
    if model in ARMS[arm].first:
        one = {n: fits.auc(arm, set_, model, n, 0, False) for n in ARMS[arm].candidates}
        kept = list(dict.fromkeys([*sorted(one, key=lambda n: -one[n])[:2], *kept]))
    return max(kept, key=lambda n: statistics.fmean(fits.auc(arm, set_, model, n, s, False) for s in range(seeds)))


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--arm", action="append", choices=[*ARMS])
    parser.add_argument("--set", action="append", choices=defaults_data.STREAMS)
    parser.add_argument("--model", action="append", help="only these models of the arms, such as LR or '1 epoch'")
    parser.add_argument("--data", type=Path, default=quality_data.SHARED, help="the folder of the real sets")
    parser.add_argument("--log", type=Path, help="append every fit as a JSON line, and read those that are there")
    parser.add_argument("--quick", action="store_true", help="one seed in every round")
    parser.add_argument("--rounds", type=int, choices=(1, 3), default=3, help="1: stop after the first round")
    asked = parser.parse_args()
    quality_data.SHARED, quality_data.ADLOG_ROWS = asked.data, defaults_data.ADLOG_ROWS
    fits = Fits(asked.log)
    found = {}
    for arm in asked.arm or ARMS:
        found[arm] = choose(arm, fits, asked)
    worst = max((lost for arm in found.values() for lost in arm.get("lost to tuned", {}).values()), default=None)
    report.finish(
        worst, {}, "test AUC that the chosen defaults lose to tuned models, at worst", more_is_better=False, arms=found
    )


if __name__ == "__main__":
    main()
