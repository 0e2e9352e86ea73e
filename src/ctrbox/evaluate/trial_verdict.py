"""Describes the result of a feature trial: differences with intervals, costs, and a table to print."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ctrbox.arguments.names import nearest
from ctrbox.errors import PlanError
from ctrbox.evaluate.compare_two_models import Difference

FEW = 10  # clicks, or non-clicks, below which nothing is called better or worse


@dataclass(frozen=True)
class Cost:
    """The cost of a feature. ``extract_us``: additional microseconds per row on one core; ``learn_us``: those of one
    learner.
    """

    extract_us: float
    keys: float  # a row
    new_keys: int  # in the table
    table_bytes: int
    learn_us: float


@dataclass(frozen=True)
class Candidate:
    """The comparison of a model with a feature and the same model without it. ``auc`` and ``logloss`` are differences:
    with minus without.
    """

    name: str
    features: Mapping[str, str]  # name → how it was written
    auc: Difference
    logloss: Difference
    aucs: tuple[float, ...]  # with the feature, by seed
    loglosses: tuple[float, ...]
    cost: Cost

    @property
    def verdict(self) -> str:
        """Return the verdict by AUC: "better", "worse" or "cannot tell". With fewer than FEW clicks or non-clicks, it
        is "cannot tell".
        """
        if not self.auc.significant or self.too_few:
            return "cannot tell"
        return "better" if self.auc.value > 0 else "worse"

    @property
    def too_few(self) -> bool:
        """Whether a class has so few rows that the interval, which is made for many rows, cannot be trusted."""
        return min(self.auc.clicks, self.auc.rows - self.auc.clicks) < FEW

    @property
    def rows_needed(self) -> int | None:
        """Return about how many validation rows would be enough for a verdict if the difference stayed the same.

        None if there is a verdict already, or if the difference is 0.
        """
        reach = (self.auc.high - self.auc.low) / 2
        if self.auc.significant or self.too_few or not math.isfinite(reach) or abs(self.auc.value) < 1e-12:
            return None
        return max(self.auc.rows, math.ceil(self.auc.rows * (reach / self.auc.value) ** 2))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "features": dict(self.features),
            "verdict": self.verdict,
            "rows_needed": self.rows_needed,
            "auc": {**_plain(self.auc), "by_seed": [_number(v) for v in self.aucs]},
            "logloss": {**_plain(self.logloss), "by_seed": [_number(v) for v in self.loglosses]},
            "cost": {k: _number(v) for k, v in asdict(self.cost).items()},
        }


class Trial(Mapping[str, Candidate]):
    """The candidates of a trial by name. ``print(trial)`` shows all, ``trial["x_y"].verdict`` is one verdict, and
    ``to_dict()`` returns plain data.
    """

    def __init__(
        self,
        candidates: Mapping[str, Candidate],
        *,
        model: str,
        data: str,
        seeds: tuple[int, ...],
        train_rows: int,
        epochs: int = 1,
        valid_rows: int,
        valid_clicks: int = 0,
        weighted: bool = False,
        label: str | None = None,
        aucs: tuple[float, ...],
        loglosses: tuple[float, ...],
        extract_us: float,
        learn_us: float,
        seconds: float,
    ) -> None:
        self.candidates = dict(candidates)
        self.model, self.data, self.seeds = model, data, seeds
        self.train_rows, self.valid_rows, self.valid_clicks = train_rows, valid_rows, valid_clicks
        self.epochs = epochs  # train_rows counts a row once per epoch
        self.label = label  # of several labels the one that is compared, None where there is one
        self.weighted = weighted  # whether training used sample weights; figures never do
        self.aucs, self.loglosses = aucs, loglosses  # without any candidate, by seed
        self.extract_us, self.learn_us, self.seconds = extract_us, learn_us, seconds

    def __getitem__(self, name: str) -> Candidate:
        if name not in self.candidates:
            raise PlanError(f"{name!r} was not tried{nearest(str(name), self.candidates)}; tried: {[*self.candidates]}")
        return self.candidates[name]

    def __contains__(self, name: object) -> bool:
        return name in self.candidates

    def __iter__(self) -> Iterator[str]:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)

    def __repr__(self) -> str:
        shown = ", ".join(f"{c.name}: {c.verdict}" for c in self.candidates.values())
        return f"Trial({self.model}, {shown})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "seeds": list(self.seeds),
            "rows": {"train": self.train_rows, "valid": self.valid_rows, "valid_clicks": self.valid_clicks},
            **({} if self.label is None else {"label": self.label}),
            "weighted_training": self.weighted,
            "seconds": self.seconds,
            "without": {
                "auc": _number(_mean(self.aucs)),
                "logloss": _number(_mean(self.loglosses)),
                "auc_by_seed": [_number(v) for v in self.aucs],
                "logloss_by_seed": [_number(v) for v in self.loglosses],
                "extract_us": _number(self.extract_us),
                "learn_us": _number(self.learn_us),
            },
            "candidates": [c.to_dict() for c in self.candidates.values()],
        }

    def __str__(self) -> str:
        found = [*self.candidates.values()]
        seeds = f"{len(self.seeds)} seed" + ("s" if len(self.seeds) > 1 else "")
        often = f" in {self.epochs:,} epochs" if self.epochs > 1 else ""
        head = f"{self.model} on {self.data}: {self.train_rows:,} training rows{often}, {self.valid_rows:,} validation rows "
        what = "clicks" if self.label is None else f"with {self.label!r}"
        head += f"({self.valid_clicks:,} {what}), {seeds}"
        gain = [
            ["", "AUC", "difference", "95 % interval", "log loss", "difference", "95 % interval", ""],
            ["without", f"{_mean(self.aucs):.5f}", "", "", f"{_mean(self.loglosses):.5f}", "", "", ""],
        ]
        for c in found:
            gain.append([c.name, *_shown(c.auc), *_shown(c.logloss), _words(c)])
        price = [
            ["", "extract µs/row", "learn µs/row", "keys/row", "new keys", "table bytes"],
            ["without", f"{self.extract_us:.2f}", f"{self.learn_us:.2f}", "", "", ""],
        ]
        for c in found:
            x = c.cost
            price.append(
                [
                    c.name,
                    f"{x.extract_us:+.2f}",
                    f"{x.learn_us:+.2f}",
                    f"{x.keys:+.2f}",
                    f"{x.new_keys:+,}",
                    f"{x.table_bytes:+,}",
                ]
            )
        lines = [head, "", *_aligned(gain), "", *_aligned(price)]
        if len(self.seeds) == 1:
            lines += [
                "",
                "One seed: the intervals cover the sampling error of the rows, but not the variation between random "
                "initializations.",
            ]
        if len(found) > 1:
            lines += [
                "",
                f"{len(found)} candidates: each interval is widened; with 95 % probability all of them contain the true value.",
            ]
        if self.weighted:
            lines += [
                "",
                "Training used sample weights. AUC and log loss here do not: all validation rows count equally.",
            ]
        return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _shown(d: Difference) -> list[str]:
    return [f"{d.b:.5f}", f"{d.value:+.5f}", f"[{d.low:+.5f}, {d.high:+.5f}]"]


def _words(c: Candidate) -> str:
    needed = c.rows_needed
    if c.too_few:
        return f"{c.verdict}; the validation rows have fewer than {FEW} clicks or non-clicks"
    if needed is None:
        return c.verdict
    if needed > 1000 * c.auc.rows:
        return f"{c.verdict}; the difference is too small to measure"
    return f"{c.verdict}; about {float(f'{needed:.2g}'):,.0f} validation rows might be enough to tell"


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns of one width; the first and the last to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(w) if k == 0 or (k == last and rows[0][k] == "") else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None


def _plain(d: Difference) -> dict[str, Any]:
    return {
        "without": _number(d.a),
        "with": _number(d.b),
        "difference": _number(d.value),
        "low": _number(d.low),
        "high": _number(d.high),
        "p_value": _number(d.p_value),
    }
