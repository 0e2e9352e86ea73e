"""Slow twins of the operators on times: NumPy's calendar for the parts, Python's datetime for text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import numpy as np

from tests.twins.numbers import wrap

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def part(name: str, t: int, offset: int) -> int:
    minutes, _ = divmod(wrap(t + offset * 60_000_000), 60_000_000)  # whole numbers: NumPy reads -2^63 as "not a time"
    epoch_day, minute_of_day = divmod(minutes, 24 * 60)
    if name == "hour":
        return minute_of_day // 60
    if name == "minute":
        return minute_of_day % 60
    if name == "epoch_day":
        return epoch_day
    if name == "weekday":
        return (epoch_day + 3) % 7
    day = np.datetime64(epoch_day, "D")
    if name == "year":
        return int(day.astype("M8[Y]").astype("int64")) + 1970
    if name == "month":
        return int(day.astype("M8[M]").astype("int64")) % 12 + 1
    assert name == "day"
    return int((day - day.astype("M8[M]").astype("M8[D]")).astype("int64")) + 1


def age(now: int, then: int, unit: float) -> float:
    return float(wrap(now - then)) / unit


def of_number(n: int, unit: str) -> int | None:
    """Microseconds since 1970 of a whole number of a unit, or None outside the years that a datetime has."""
    each = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}
    if unit == "ns":
        return n // 1000
    try:
        return (EPOCH + n * each[unit] - EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        return None


ISO = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    rb"(?:[ T]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def parse(text: bytes) -> int | None:
    """Microseconds since 1970, or None."""
    match = ISO.fullmatch(text)
    if not match:
        return None
    date, clock, second, fraction, zone = (g.decode() if g else "" for g in match.groups())
    try:
        moment = datetime.strptime(f"{date} {clock or '00:00'}:{second or '00'} +0000", "%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return None
    if second and int(second) > 59:
        return None
    micros = (moment - EPOCH) // timedelta(microseconds=1) + int((fraction + "000000")[:6])
    if zone and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 23 or minutes > 59:
            return None
        shift = (hours * 60 + minutes) * 60_000_000
        micros += shift if zone[0] == "-" else -shift
    return micros
