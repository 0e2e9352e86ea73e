"""What would eight H200s reach together? A calculation from figures measured on one, not a measurement.

    python -m benchmarks.ranks_projection [--gpus 8] [--bandwidth 450] [--reached 0.7] [--rows 100000000]

Ranks on several GPUs have not been measured. This script computes what their step would take for DLRM-DCNv2 in the shape of
MLPerf (`benchmarks.gpu_mlperf`), if ranks on GPUs exchanged what ranks on CPUs exchange (docs/how_it_works/ranks.md):

    n                samples of a GPU in one step; W GPUs learn W · n
    t(n) = a + b · n step of one GPU, through the two measured points (`MEASURED`)
    u(n)             expected different keys among the ids of n samples, Σ 1 - (1 - p)^(n · ids) over the ids of each field; ids
                     are log-uniform, as the benchmark draws them
    keys             8 · u · (W-1)/W bytes out of each GPU, while the step before runs
    rows, gradients  f · dim · u · (W-1)/W bytes each; f = 4 for float32, 2 for bfloat16
    pooled           f · dim · fields · n · (W-1)/W bytes each instead, if each field belonged to one GPU as a whole, so that
                     it could send one sum of rows for each sample; CTRBox's ranks own keys, not fields
    dense            2 · 4 · P · (W-1)/W bytes for P dense weights
    x = bytes / (bandwidth · reached) + calls · latency      seconds of the exchange inside a step
    step             between max(t, x), if all of it were hidden behind the model, and t + x, if nothing were
    samples/s        W · n / step

Assumed, not measured: the bandwidth of NVLink in one direction (H200: 900 GB/s in both together), the share of it that all-to-all
exchanges reach, 30 µs for each of four collective calls, and keys that spread evenly over the GPUs. An owner looks up a key that
several GPUs ask for once, which t(n) counts several times; adding up their gradients is not counted. Below 16,384 samples, t(n)
is an extrapolation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import report
from benchmarks.gpu_mlperf import FULL, IDS, Dlrm, World, capped

MEASURED = {16_384: 0.0110, 65_536: 0.0396}  # seconds of a step on one H200, 100M rows, bfloat16, commit 5ffe896
CALLS, LATENCY = 4, 30e-6  # rows, gradients, and two for the dense gradients; seconds of each
EXACT = 4096  # ids that are summed one by one; the others in groups of nearly equal probability
NARROW = 1e-3  # largest relative width of such a group
SIZES = (8_192, 16_384, 65_536)  # samples of a GPU in one step


@dataclass(frozen=True)
class Link:
    """The connection between GPUs, in bytes per second and direction, and the share of it that an exchange reaches."""

    bandwidth: float
    reached: float

    def seconds(self, size: float) -> float:
        """Return the time of exchanges of so many bytes out of each GPU."""
        return size / (self.bandwidth * self.reached) + CALLS * LATENCY


@dataclass(frozen=True)
class Projection:
    """One size of a batch. Bytes leave each GPU in one step, seconds are of one step."""

    samples: int  # of a GPU
    alone: float  # seconds of one GPU without exchange
    keys: float
    rows: float  # and as many bytes of gradients
    dense: float
    exchange: float  # seconds
    gpus: int

    @property
    def fastest(self) -> float:
        """Seconds of a step whose exchange is hidden behind the model."""
        return max(self.alone, self.exchange)

    @property
    def slowest(self) -> float:
        """Seconds of a step whose exchange is not hidden at all."""
        return self.alone + self.exchange

    def rate(self, seconds: float) -> float:
        """Return the samples per second of all GPUs."""
        return self.gpus * self.samples / seconds


def step_alone(samples: float) -> float:
    """Return t(n): the line through the two measured points."""
    (n, t), (m, u) = MEASURED.items()
    slope = (u - t) / (m - n)
    return t + slope * (samples - n)


def different(size: int, draws: float) -> float:
    """Return how many of ``size`` log-uniform ids are expected among so many draws."""
    first = min(size, EXACT)
    edges = [np.arange(first + 1, dtype=np.float64)]
    if size > first:
        groups = math.ceil(math.log(size / first) / NARROW)
        edges.append(np.unique(np.geomspace(first, size, groups + 1).round())[1:])
    ends = np.concatenate(edges)
    ids = np.diff(ends)  # in each group
    p = np.diff(np.log(ends + 1)) / math.log(size + 1) / ids
    with np.errstate(divide="ignore"):  # a field with one id, whose probability is 1
        return float((ids * -np.expm1(draws * np.log1p(-np.minimum(p, 1.0)))).sum())


def keys_of(samples: int, rows: int) -> float:
    """Return u(n): the different keys that the ids of so many samples are expected to have; ``rows``: of all fields."""
    return sum(different(size, samples * many) for size, many in zip(capped(rows), IDS, strict=True))


def projected(
    samples: int, gpus: int, link: Link, keys: float, dense_weights: int, each: int, pooled: bool = False
) -> Projection:
    """Return the projection for so many samples of a GPU. ``each``: bytes of a float of a row, ``keys``: u(n)."""
    elsewhere = (gpus - 1) / gpus
    vectors = len(IDS) * samples if pooled else keys
    rows = each * FULL.dim * vectors * elsewhere
    dense = 2 * 4 * dense_weights * elsewhere
    return Projection(
        samples, step_alone(samples), 8 * keys * elsewhere, rows, dense, link.seconds(2 * rows + dense), gpus
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the projections."""
    parser = report.options(__doc__)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--bandwidth", type=float, default=450.0, help="GB/s of NVLink in one direction; default 450")
    parser.add_argument("--reached", type=float, default=0.7, help="share of it that an exchange reaches; default 0.7")
    parser.add_argument("--rows", type=int, default=100_000_000, help="rows of all tables; default 100,000,000")
    parser.add_argument("--quick", action="store_true", help="the same: the projection is only a calculation")
    asked = parser.parse_args(arguments)
    link = Link(asked.bandwidth * 1e9, asked.reached)
    weights = dense_weights()
    lines, found = [], {}
    for samples in SIZES:
        keys = keys_of(samples, asked.rows)
        for name, each, pooled in KINDS:
            one = projected(samples, asked.gpus, link, keys, weights, each, pooled)
            lines.append(cells(name, keys, one))
            found[f"{samples} {name}"] = [round(one.rate(one.slowest)), round(one.rate(one.fastest))]
    print(
        f"a calculation for {asked.gpus} GPUs at {asked.bandwidth:g} GB/s × {asked.reached:g}; {weights:,} dense weights"
    )
    report.table(HEAD, lines)
    slow = found[f"{SIZES[-1]} {KINDS[0][0]}"][0] / 1e6
    alone = SIZES[-1] / step_alone(SIZES[-1]) / 1e6
    report.finish(slow, {"one GPU, measured": alone}, "million samples/s, calculated", projections=found)


KINDS = (("rows, float32", 4, False), ("rows, bfloat16", 2, False), ("pooled, bfloat16", 2, True))
HEAD = (
    "samples of a GPU",
    "exchanged",
    "different keys",
    "ms alone",
    "MB keys",
    "MB rows + gradients",
    "MB dense",
    "ms exchange",
    "ms step",
    "million samples/s",
)


def cells(name: str, keys: float, one: Projection) -> list[str]:
    """Return a line of the table."""
    return [
        f"{one.samples:,}",
        name,
        f"{keys:,.0f}",
        f"{one.alone * 1e3:.1f}",
        f"{one.keys / 1e6:.1f}",
        f"{2 * one.rows / 1e6:,.0f}",
        f"{one.dense / 1e6:.0f}",
        f"{one.exchange * 1e3:.1f}",
        f"{one.fastest * 1e3:.1f} to {one.slowest * 1e3:.1f}",
        f"{one.rate(one.slowest) / 1e6:.1f} to {one.rate(one.fastest) / 1e6:.1f}",
    ]


def dense_weights() -> int:
    """Return the number of weights of the network, which every GPU holds a copy of."""
    schema = World(torch.device("cpu"), 1000).schema
    return sum(weight.numel() for weight in Dlrm(schema, FULL).parameters())


if __name__ == "__main__":
    main()
