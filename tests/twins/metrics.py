"""Slow twins of the metrics: plain Python, every pair of rows looked at, exact fractions where that is possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

CLIP = 1e-7
Rows = list[tuple[int, float, float]]  # label, probability, weight


def auc(rows: Rows) -> float:
    """Over all pairs of a click and a non-click; a tie counts half."""
    clicks = [(p, Fraction(weight)) for label, p, weight in rows if label]
    others = [(p, Fraction(weight)) for label, p, weight in rows if not label]
    won = possible = Fraction(0)
    for p, weight in clicks:
        for q, second in others:
            possible += weight * second
            won += weight * second * (1 if p > q else Fraction(1, 2) if p == q else 0)
    return float(won / possible) if possible else math.nan


def auc_within_cells(rows: Rows, cell_of: dict[float, int]) -> float:
    """AUC when the scores of a cell cannot be told apart."""
    return auc([(label, float(cell_of[p]), weight) for label, p, weight in rows])


def gauc(rows: Rows, groups: Sequence[int]) -> tuple[float, int, int]:
    """AUC of each group averaged by its weight; how many groups and rows took part."""
    members: dict[int, Rows] = {}
    for row, group in zip(rows, groups, strict=True):
        members.setdefault(group, []).append(row)
    total = shown = 0.0
    used = used_rows = 0
    for inside in members.values():
        area = auc(inside)
        if not math.isnan(area):
            weight = math.fsum(w for _, _, w in inside)
            total += area * weight
            shown += weight
            used += 1
            used_rows += len(inside)
    return (total / shown if used else math.nan), used, used_rows


def loss(label: int, p: float) -> float:
    p = min(max(p, CLIP), 1 - CLIP)
    return -math.log(p if label else 1 - p)


def entropy(rate: float) -> float:
    if math.isnan(rate):
        return math.nan
    return math.fsum(-q * math.log(q) for q in (rate, 1 - rate) if q > 0)


def sums(rows: Rows) -> dict[str, float]:
    """Everything that needs no order of scores."""
    total = math.fsum(w for _, _, w in rows)
    clicked = math.fsum(w for y, _, w in rows if y)
    base_rate = clicked / total if total else math.nan
    logloss = math.fsum(w * loss(y, p) for y, p, w in rows) / total if total else math.nan
    best = entropy(base_rate)
    return {
        "rows": len(rows),
        "clicks": sum(y for y, _, _ in rows),
        "logloss": logloss,
        "rig": 1 - logloss / best if best > 0 else math.nan,
        "calibration": math.fsum(w * p for _, p, w in rows) / clicked if clicked else math.nan,
        "base_rate": base_rate,
        "best_constant_logloss": best,
    }


def everything(rows: Rows, groups: Sequence[int] | None) -> dict[str, float]:
    area, used, used_rows = (math.nan, 0, 0) if groups is None else gauc(rows, groups)
    return {"auc": auc(rows), "gauc": area, "gauc_groups": used, "gauc_rows": used_rows, **sums(rows)}


def curve(rows: Rows, bins: int) -> tuple[list[tuple[int, float, float, float, float]], float]:
    """(rows, mean p, click rate, least p, largest p) of each bin, and the expected calibration error."""
    rows = [row for row in rows if row[2] > 0]
    members: dict[int, Rows] = {}
    for row in rows:
        smaller = sum(other[1] < row[1] for other in rows)
        members.setdefault(smaller * bins // len(rows), []).append(row)
    out = []
    error = total = 0.0
    for place in sorted(members):
        inside = members[place]
        weight = math.fsum(w for _, _, w in inside)
        mean_p = math.fsum(w * p for _, p, w in inside) / weight
        rate = math.fsum(w * y for y, _, w in inside) / weight
        out.append((len(inside), mean_p, rate, min(p for _, p, _ in inside), max(p for _, p, _ in inside)))
        error += weight * abs(mean_p - rate)
        total += weight
    return out, error / total if total else math.nan


def delong(labels: Sequence[int], a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """AUC of b minus AUC of a, and its variance, from every pair of rows."""
    clicks = [k for k, y in enumerate(labels) if y]
    others = [k for k, y in enumerate(labels) if not y]

    def wins(scores: Sequence[float], i: int, j: int) -> float:
        return 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0

    def variance(sample: list[float]) -> float:
        mean = math.fsum(sample) / len(sample)
        return math.fsum((x - mean) ** 2 for x in sample) / (len(sample) - 1)

    change = {(i, j): wins(b, i, j) - wins(a, i, j) for i in clicks for j in others}
    of_click = [math.fsum(change[i, j] for j in others) / len(others) for i in clicks]
    of_other = [math.fsum(change[i, j] for i in clicks) / len(clicks) for j in others]
    value = math.fsum(of_click) / len(clicks)
    return value, variance(of_click) / len(clicks) + variance(of_other) / len(others)


def student_tail(t: float, freedom: float, steps: int = 20_000) -> float:
    """P(T > t) by the midpoint rule, after t = sqrt(freedom) tan(angle) has made the line finite."""

    def area(low: float, high: float) -> float:
        width = (high - low) / steps
        return math.fsum(math.cos(low + (k + 0.5) * width) ** (freedom - 1) for k in range(steps)) * width

    return area(math.atan(t / math.sqrt(freedom)), math.pi / 2) / area(-math.pi / 2, math.pi / 2)


def crc32c(data: bytes) -> int:
    """Bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            low = crc & 1 ^ byte >> bit & 1
            crc = crc >> 1 ^ (0x82F63B78 if low else 0)
    return crc ^ 0xFFFFFFFF


def evidence(rows: Rows) -> tuple[float, float, float, float]:
    """(z, excess, behind, evidence) of one slice, straight from their definitions."""
    total = math.fsum(w for _, _, w in rows)
    squares = math.fsum(w * w for _, _, w in rows)
    spread = math.sqrt(math.fsum(w * w * p * (1 - p) for _, p, w in rows))
    z = math.fsum(w * (y - p) for y, p, w in rows) / spread if spread else math.nan
    rate = sums(rows)["base_rate"]
    mean = min(max(math.fsum(w * p for _, p, w in rows) / total, CLIP), 1 - CLIP)
    kl = math.fsum(r * math.log(r / q) for r, q in ((rate, mean), (1 - rate, 1 - mean)) if r > 0)
    more = [(loss(y, p) - (-math.log(rate if y else 1 - rate) if 0 < rate < 1 else 0.0), w) for y, p, w in rows]
    behind = math.fsum(w * d for d, w in more)
    error = math.sqrt(math.fsum((w * (d - behind / total)) ** 2 for d, w in more))
    lead = max(behind - 0.5 * squares / total, 0.0)
    beaten = lead / error if error > 1e-9 * abs(behind) else 0.0
    return z, total * kl, behind, max(total * total / squares * kl, beaten**2 / 2)
