"""Does a table that grows tenfold within the same memory keep its speed?

    python -m benchmarks.growth [--quick] [--ram 400MB] [--plot growth.svg] [--folder DIR]

The table is filled with 10M keys and grows to 100M; a batch is 100,000 new keys and 60,000 old ones by Zipf 1.05 over
all that exist, the oldest being the most frequent: one pull, one push, no prefetch. Rows are 8 floats with plain SGD,
so that the disk holds at most 12 GB. Time of a batch includes whatever compaction goes on beside it. The rows of every
4,096th key are compared with a table in memory at the end. Asked: batches and resident memory flat within 1.5 times.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import disk, report
from benchmarks.table_trace import Keys, Zipf, mixed

DIM, LR, INIT, SEED = 8, 0.05, 0.01, 4
STEPS = 9  # windows in which the table grows by what it started with
NEW, OLD, FIRST, RAM = 100_000, 60_000, 10_000_000, 400_000_000
WITNESS = 4_096
FLAT = 1.5


@dataclass
class Window:
    """A part of the way: while the table grew from ``keys`` to ten or so percent more."""

    keys: int
    ms: list[float] = field(default_factory=list)
    rss: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return float(np.mean(self.ms))


class Growing:
    """The table, a witness in memory for some of its keys, and the batches."""

    def __init__(self, folder: Path, ram: int, scale: int) -> None:
        import ctrbox as cb

        self.scale, self.size = scale, 0
        self.rng = np.random.default_rng(8)
        self.gradients = self.rng.normal(size=((NEW + OLD) // scale, DIM)).astype(np.float32)
        optimizer = cb.optim.SGD(lr=LR)
        self.witness = cb.MemoryTable(DIM, optimizer=optimizer, init=INIT, seed=SEED)
        self.before = resident()
        self.table: Any = cb.SparseTable(
            folder / "growth.table", DIM, ram=ram, optimizer=optimizer, init=INIT, seed=SEED
        )

    def step(self, old: int) -> float:
        """One batch; the milliseconds of its pull and push."""
        numbers = np.arange(self.size + 1, self.size + NEW // self.scale + 1, dtype=np.uint32)
        if old:
            numbers = np.concatenate([numbers, self.known(old)])
            self.rng.shuffle(numbers)
        self.size += NEW // self.scale
        keys, gradients = mixed(numbers), self.gradients[: len(numbers)]
        began = time.perf_counter()
        self.table.pull(keys)
        self.table.push(keys, gradients)
        took = time.perf_counter() - began
        watched = numbers % WITNESS == 0
        self.witness.push(keys[watched], gradients[watched])
        return took * 1e3

    def known(self, count: int) -> np.ndarray:
        """So many different numbers of keys that exist."""
        drawn = Zipf(self.size, 1.05).draw(self.rng, 6 * count)
        different, first = np.unique(drawn, return_index=True)
        return np.asarray(different[np.argsort(first)][:count], np.uint32)

    def check(self) -> int:
        numbers = np.arange(WITNESS, self.size + 1, WITNESS, dtype=np.uint32)
        keys: Keys = mixed(numbers)
        assert len(self.table) == self.size, f"{len(self.table):,} keys where {self.size:,} were made"
        there, expected = self.table.pull(keys, create=False), self.witness.pull(keys, create=False)
        assert (there.view(np.uint32) == expected.view(np.uint32)).all(), "rows differ from those in memory"
        return len(keys)


def resident() -> int:
    """Bytes of memory that this process holds now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def grown(growing: Growing, first: int, parts: int) -> list[Window]:
    """Windows from ``first`` keys to ten times as many."""
    while growing.size < first:
        growing.step(0)
    windows, last = [], dict(growing.table.stats())
    for number in range(STEPS * parts):
        window = Window(growing.size)
        until = first + first * (number + 1) // parts
        while growing.size < until:
            window.ms.append(growing.step(OLD // growing.scale))
            window.rss = max(window.rss, resident())
        now = dict(growing.table.stats())
        window.counts = {name: value - last[name] for name, value in now.items()} | {
            "disk_now": now["disk_bytes"],
            "runs_now": now["runs"],
        }
        last = now
        windows.append(window)
    return windows


def joined(windows: list[Window], parts: int) -> list[Window]:
    """Every ``parts`` windows as one."""
    out = []
    for k in range(0, len(windows), parts):
        some = windows[k : k + parts]
        counts = {name: sum(w.counts[name] for w in some) for name in some[0].counts}
        counts |= {name: some[-1].counts[name] for name in ("disk_now", "runs_now")}
        out.append(Window(some[0].keys, [ms for w in some for ms in w.ms], max(w.rss for w in some), counts))
    return out


def show(windows: list[Window]) -> None:
    lines = []
    for w in windows:
        c, keys = w.counts, max(1, w.counts["asked"])
        lines.append(
            [
                f"{w.keys / 1e6:,.0f}M",
                f"{w.mean:.1f}",
                f"{np.median(w.ms):.1f}",
                f"{max(w.ms):.0f}",
                f"{w.rss / 1e6:,.0f}",
                f"{c['hits'] / max(1, c['hits'] + c['misses']):.1%}",
                f"{c['reads'] / keys:.3f}",
                f"{c['bytes_written'] / keys:,.0f}",
                f"{c['disk_now'] / 1e9:.2f}",
                f"{c['runs_now']:,}",
            ]
        )
    head = ["from", "ms a batch", "median", "longest", "RSS MB", "hits of old", "reads a key", "bytes written a key"]
    report.table([*head, "GB on disk", "runs"], lines)


def plot(fine: list[Window], path: Path) -> None:
    """Time and memory over keys, one above the other, as one picture."""
    from ctrbox.show import charts, page

    # A chart is made for a page: alone it needs the colors of the page and a name space.
    colors = " ".join(re.findall(r":root\{[^}]*\}", page.STYLE)[:1])
    parts = [
        ("milliseconds a batch", [(w.keys, w.mean) for w in fine], "a"),
        ("resident memory, MB", [(w.keys, w.rss / 1e6) for w in fine], "b"),
    ]
    body = []
    for number, (label, points, tone) in enumerate(parts):
        line = charts.Line(label, points, tone)
        drawn = charts.line_chart([line], label=label, across="keys in the table", width=760, height=250)
        place = f'<svg x="0" y="{number * 290 + 28}" width="760" height="250" '
        body.append(f'<text class="name" x="54" y="{number * 290 + 20}">{charts.text(label)}</text>')
        body.append(drawn.replace("<svg ", place, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="760" height="580" viewBox="0 0 760 580">'
        f"<style>{colors}{charts.STYLE}</style>"
        f'<rect width="760" height="580" fill="#fff"/>{"".join(body)}</svg>\n'
    )


def main() -> None:
    options = report.options(__doc__)
    options.add_argument("--quick", action="store_true", help="1M to 10M keys, a tenth of the memory and of a batch")
    options.add_argument("--ram", help="of the table; a tenth of the final keys and rows unless given")
    options.add_argument("--plot", default=str(report.ROOT / ".cache" / "growth.svg"))
    options.add_argument("--folder", help="where the table lies; a folder under .cache unless given")
    given = options.parse_args()
    from ctrbox.arguments.sizes import parse_bytes

    scale = 10 if given.quick else 1
    ram = parse_bytes(given.ram) if given.ram else RAM // scale
    parts = 10
    with disk.scratch(given.folder) as folder:
        growing = Growing(folder, ram, scale)
        try:
            fine = grown(growing, FIRST // scale, parts)
            peak = report.peak_rss()
            checked = growing.check()
            stats = growing.table.stats()
        finally:
            growing.table.close()
            shutil.rmtree(folder / "growth.table", ignore_errors=True)
    windows = joined(fine, parts)
    print(
        f"{FIRST // scale:,} to {growing.size:,} keys of {4 * DIM} bytes, {ram / 1e6:,.0f} MB of memory, batches of "
        f"{NEW // scale:,} new and {OLD // scale:,} old keys; {checked:,} rows equal those in memory\n"
        f"{report.machine()}, commit {report.commit()}\n"
    )
    show(windows)
    plot(fine, Path(given.plot))
    slower = max(w.mean for w in windows) / windows[0].mean
    larger = max(w.rss for w in windows) / windows[0].rss
    held = peak - growing.before
    print(f"\nplotted: {given.plot}")
    print(f"RSS grew by {held / 1e6:,.0f} MB from before the table was opened, {held / ram:.2f} × its budget")
    for what, ratio in (("time of a batch", slower), ("RSS", larger)):
        print(f"{what}: {ratio:.2f} × the first window's, {FLAT} allowed: {'met' if ratio <= FLAT else 'NOT met'}")
    print()
    met = slower <= FLAT and larger <= FLAT
    report.finish(
        slower,
        {},
        "slowest window / first window, time of a batch",
        more_is_better=False,
        rss_ratio=round(larger, 3),
        ms=[round(w.mean, 2) for w in windows],
        rss=[w.rss for w in windows],
        ram=ram,
        rss_above_start=held,
        disk_bytes=stats["disk_bytes"],
        live_bytes=stats["live_bytes"],
        met=met,
        quick=given.quick,
    )
    if not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
