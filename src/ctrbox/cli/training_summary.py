"""Prints the summary at the end of training: metrics, the time of each stage, and the share of keys that were not found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ctrbox.cli.terminal import say, say_json, tell


@dataclass(frozen=True)
class Done:
    """A finished training run, and where its folder and its report are."""

    run: Any
    place: Any  # a path, or a folder on S3 or HDFS
    report: str


def finish(done: Done, as_json: bool) -> None:
    """Print the end of a training run: its metrics, the time of each stage, and the paths of the run and the report."""
    from ctrbox.files.sealed_json import tidy
    from ctrbox.report.number_format import learned_rows

    s = done.run.summary
    if as_json:
        say_json(**{**tidy(s), "run": str(done.place), "report": str(done.report)})
    else:
        say(done.place)
    tell_metrics(s["metrics"])
    whole = not s.get("stopped") and s["settings"].get("negatives", 1) == 1
    learned = learned_rows(int(s["rows"]["train"]), s["epochs"], whole=whole) + ("," if s["epochs"] > 1 else "")
    tell(
        f"learned from {learned} in {s['steps']:,} steps of {s['batch_size']:,} and {s['seconds']:.1f} s "
        f"({s['rows_per_second']:,.0f} rows/s), {s['table']['keys']:,} keys in the table"
    )
    if "patience" not in s["settings"] and 0 < s["best_step"] < s["steps"]:
        tell(
            f"the validation metrics were best after step {s['best_step']:,}; with --patience 1, training stops after "
            f"the first evaluation that is not better, and keeps the best weights"
        )
    for stage in s["stages"]:
        busy, count = stage["seconds"], stage["rows"]
        rate = f"{count / busy:>12,.0f} rows/s" if busy > 0 and count else " " * 19
        mark = "  ← bottleneck" if stage["name"] == s.get("bottleneck") else ""
        tell(f"  {stage['name']:<12}{busy:>9.2f} s busy{rate}{stage['utilization']:>7.0%}{stalls(stage)}{mark}")
    passes = s["pipeline"]
    if passes["seconds"]:
        tell(
            f"all stages one after the other: {passes['sequential']:.2f} s; the slowest stage alone: "
            f"{passes['slowest']:.2f} s; all stages in parallel: {passes['seconds']:.2f} s"
        )
    for table in s["tables"]:
        tell(told_of(table))
    for one in s.get("servers", []):
        if one["missing"]:
            named = ", ".join(one["fields"])
            tell(f"  Model Server of {named}: {one['missing_share']:.1%} of the keys have no row in {one['data']}")
    for join in s.get("joins", []):
        if join["missed"]:
            share = join["missed"] / join["keys"]
            tell(
                f"  join with view {join['view']} on {', '.join(join['on'])}: {share:.1%} of {join['keys']:,} keys "
                "have no row in this view"
            )
    for line in told_losses(s["warnings"], s.get("casts", [])):
        tell(f"{line}, counted over all epochs")
    waited = f", for batches that were read ahead (--look-ahead {s['look_ahead']})" if s.get("look_ahead") else ""
    tell(f"intermediate files: {s['intermediate_bytes']:,} bytes{waited}")
    tell(f"report: {done.report}")


def told_losses(counts: Mapping[str, int], casts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each operator that lost values; for a cast with the first value that it lost."""
    first = {f"{cast['cast']} of {cast['column']!r}": cast for cast in casts}
    lines = []
    for what, rows in counts.items():
        cast = first.get(what)
        line = f"  warning: {what}: {rows:,} values lost"
        if cast is not None:
            line = f"  warning: {what}: {rows:,} of {cast['values']:,} values could not be converted and are null"
            line += "" if cast["example"] is None else f" (the first is {cast['example']!r})"
        lines += [line] if rows else []
    return lines


def stalls(stage: Mapping[str, Any]) -> str:
    """Return for what a stage waited and for how long, and how many batches waited after it."""
    waits = [(stage["for_input"], "input"), (stage["for_room"], "room")]
    words = [f"{seconds:.2f} s for {what}" for seconds, what in waits if seconds >= 0.005]
    queue = f"queue {stage['queue']:.1f}, most {stage['queue_most']}" if "queue" in stage else ""
    shown = [f"waited {' and '.join(words)}"] if words else []
    return "".join(f"  {part}" for part in [*shown, *([queue] if queue else [])])


def told_of(table: Mapping[str, Any]) -> str:
    """Return one line about the look-ups of a training run in a table."""
    from ctrbox.report.number_format import sized

    asked, hits = table["asked"], table["hit_rate"]
    parts = [f"{asked:,} keys looked up"]
    parts += [f"{hits:.1%} of the known keys found in memory"] if hits is not None else []
    parts += [f"{table['new']:,} new keys"] if "new" in table else []
    if "reads" in table:
        wrong = table.get("false_positives", 0)
        parts.append(f"{table['reads_per_key'] or 0:.3f} pages read per key ({wrong:,} false positives of filters)")
    parts += [f"{sized(table['disk_bytes'])} on disk"] if "disk_bytes" in table else []
    where = f" ({table['path']})" if table.get("path") else ""
    return f"{table['name']}{where}: {', '.join(parts)}"


def tell_metrics(m: Mapping[str, float]) -> None:
    """Print the metrics of the validation rows, without weights and weighted."""
    if not m:
        tell("no metrics, because there are no validation rows; add --valid 0.1")
        return
    from ctrbox.report.number_format import figure_table, remarks

    for line in figure_table(m):
        tell(line)
    best = m.get("best_auc")
    if best is not None:
        tell(f"best possible AUC {best:.4f}; this model is {best - m['auc']:.4f} below it")
    for remark in remarks(m):
        tell(remark)
