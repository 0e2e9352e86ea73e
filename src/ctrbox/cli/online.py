"""Defines ``ctrbox online``, which learns from a stream of impressions and clicks and publishes every few minutes.

main.py registers the command. Ctrl-C and SIGTERM end it between two batches of examples: it writes a checkpoint and
prints the command that continues from there.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ctrbox.cli.job_file import Job, blaming, load_job
from ctrbox.cli.options import AsJson, SignWith
from ctrbox.cli.terminal import Mistake, hint, say, say_json, stopped_with, tell, utf8

ONLINE_EXAMPLES = """\b
Examples:
  ctrbox online job.py --stream events/ --out model/
  ctrbox online job.py --stream nats://localhost:4222/ADS --out model/ --every 2m
  ctrbox online job.py --stream events/ --out model/ --warm-up past/ --once
  ctrbox online job.py --stream events/ --out model/ --model runs/today      continue from a trained run
"""

EVENTS_EXAMPLES = """\b
Examples:
  ctrbox datasets events --data data --out events
  ctrbox datasets events --data data --out events --format jsonl --chunk-rows 1000
  ctrbox datasets events --data data --out events --rate 500      write 500 events per second
"""

SECRET = re.compile(r"://[^/@\s]+@")  # of a broker's address; what is said may be kept in a log

JobFile = Annotated[
    Path,
    typer.Argument(
        metavar="JOB.PY",
        help="Job file: a Python file that defines `plan` and `engine` (a Deep FFM) or `model` (torch).",
    ),
]
# Arguments of Trainer.fit in `settings` of a job: those that the loop uses, and those that it cannot use, with their usual
# values. Others, such as epochs, say how to go through a log and mean nothing to a stream.
USED = ("batch_size", "clip", "l2", "adaptive_l2", "seed")
UNUSABLE = {"negatives": 1.0, "average": None, "calibrate": None, "schedule": None}


def online(
    job: JobFile,
    stream: Annotated[
        str,
        typer.Option(
            metavar="DIR|URL",
            help="Source of the events: a folder of chunk files (files with events, in Parquet, Arrow or JSON lines), or "
            "nats://host:port/STREAM.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="MODEL",
            help="Model folder to create or continue; `ctrbox serve` opens the same folder.",
        ),
    ],
    every: Annotated[
        str,
        typer.Option(
            metavar="SPAN|N",
            help="How often to publish a version: after a time span such as 30s, 5m or 1h, or after a number of examples "
            "such as 100000ex.",
        ),
    ] = "5m",
    window: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Time after an impression within which a click counts as a click on the impression. The model learns from "
            "an impression only after this time plus --lateness. Examples: 30s, 10m, 1h.",
        ),
    ] = "10m",
    lateness: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Time, in addition to --window, that the loop waits for events that arrive out of order. It is measured "
            "by the times in the events, not by the clock. An event that is older than the newest event by more than "
            "--window plus --lateness is counted and left out. Examples: 30s, 1m.",
        ),
    ] = "1m",
    warm_up: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATA",
            help="Log of past rows with labels, from which the model learns before it learns from the stream; may be "
            "repeated. Default: no such log.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Folder of a finished run of the job's `model`. A new model folder begins with the weights and optimizer "
            "states of this run. Default: new weights.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of examples per step of the job's `model`. Default: batch_size of the job's `settings`, otherwise "
            "256.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a state of the plan's histories, saved by `plan.histories()`. A new model folder begins with "
            "this state. Default: the histories begin empty.",
        ),
    ] = None,
    state_every: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="How often to write the state of the plan's histories to histories.past in the output folder, such as 5s, "
            "for `ctrbox serve --follow-state`. Default: never.",
        ),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="SPAN", help="Minimum time between two checkpoints, such as 30s or 5m.")
    ] = "30s",
    held: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Maximum memory for impressions and clicks that wait for each other, such as 500MB; units are powers of "
            "1024. The command ends with an error if these events need more memory.",
        ),
    ] = "2GB",
    ahead: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Maximum time by which the time of an event may be ahead of the clock of this machine, such as 10m or 1h. "
            "Events that are further ahead are counted and left out.",
        ),
    ] = "1h",
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="COLUMN",
            help="Column with the id by which clicks and impressions are matched. Default: the key of the log.",
        ),
    ] = None,
    time_column: Annotated[
        str, typer.Option("--time", metavar="COLUMN", help="Column with the time of an event.")
    ] = "ts",
    time_unit: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            help="Unit of event times that are whole numbers since 1970: s, ms, us or ns. Required if the log stores the "
            "time as whole numbers. Default: the unit that `time_units=` of the log's view declares.",
        ),
    ] = None,
    event_column: Annotated[
        str,
        typer.Option(
            "--event", metavar="COLUMN", help="Column that holds the kind of each event: 'impression' or 'click'."
        ),
    ] = "event",
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Stop when the model has learned from all available events. Default: wait for more events until Ctrl-C.",
        ),
    ] = False,
    publish_at_end: Annotated[
        bool | None,
        typer.Option(help="Publish one more version at the end. Default: on with --once, otherwise off."),
    ] = None,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="Delete a chunk file from the folder of the stream when both checkpoints that the loop keeps include its "
            "events. Default: keep all chunk files.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Stop at the first malformed row or chunk. Default: count malformed rows and chunks and leave them out.",
        ),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            help="Number of threads that learn. For a Deep FFM, the default is 1 thread, which learns one example after "
            "the other; several threads learn blocks of up to 2048 examples, which gives different weights. For a "
            "`model`, the default is the number of threads of the plan, and the number does not change the weights.",
        ),
    ] = None,
    sign_with: SignWith = None,
    as_json: AsJson = False,
) -> None:
    """Learn from a stream of impressions and clicks.

    The command joins the impressions with their clicks, lets the model learn from them, and publishes a patch of
    the model every few minutes.
    """
    utf8(out)
    given = ["ctrbox", *sys.argv[1:]]  # a job gets an argv of its own
    loaded = load_job(job)
    with blaming(job):
        plan, engine = learner_of(loaded, model, batch_size, threads)
    from ctrbox.loop.online_loop import OnlineLoop
    from ctrbox.train.interrupt import end_as_asked

    engine.progress.show = tell
    options: dict[str, Any] = {
        "every": every,
        "window": window,
        "lateness": lateness,
        "checkpoint": checkpoint,
        "held": held,
        "ahead": ahead,
        "time": time_column,
        "time_unit": time_unit,
        "event": event_column,
    }
    with blaming(job):
        loop = OnlineLoop(
            plan,
            engine,
            stream,
            out,
            context=loaded.context,
            warm_up=warm_up or (),
            state=state,
            state_every=state_every,
            id=id_column,
            once=once,
            publish_at_end=publish_at_end,
            delete=delete,
            strict=strict,
            threads=threads if loaded.engine is not None else None,
            sign_with=sign_with,
            tell=tell,
            **options,
        )
        found = loop.run()
    if as_json:
        say_json(**{name: value for name, value in found.items() if name != "windows"})
    told(found)
    if loop.nothing_learned:
        tell(loop.nothing_learned)
    if loop.interrupted:
        stopped_with(f"resume: {SECRET.sub('://…@', shlex.join(given))}")
        end_as_asked(loop.asked)
    checked = "" if sign_with is None else f" --public-key {shlex.quote(f'{sign_with}.pub')}"
    own = f" --job {shlex.quote(str(job))}" if loaded.engine is None and of_own_class(loaded.model) else ""
    hint(f"ctrbox serve {shlex.quote(str(out))}{own}{checked}")


def of_own_class(model: Any) -> bool:
    """Return whether a model is of a class of the user's own, which a server can only get from the job."""
    from ctrbox.models import EVERY_MODEL

    return EVERY_MODEL.get(type(model).__name__) is not type(model)


def learner_of(job: Job, run: Path | None, batch_size: int | None, threads: int | None) -> tuple[Any, Any]:
    """Return the plan and the model that a job trains online: its `engine` or, without one, its `model`."""
    if job.engine is not None:
        for option, given in (("--model", run), ("--batch-size", batch_size)):
            if given is not None:
                raise Mistake(
                    f"{option} can be used only with a job that defines a torch `model`, but {job.path} defines "
                    f"`engine`, a Deep FFM; remove {option}"
                )
        return job.plan, job.needed_engine()
    if job.model is None:
        raise Mistake(
            f"{job.path} defines neither `engine` nor `model`; add: engine = cb.DeepFFM(plan.schema), or: "
            "model = cb.models.DeepFM(plan.schema)"
        )
    for name, usual in UNUSABLE.items():
        if name in job.settings and job.settings[name] != usual:
            raise Mistake(f"`settings` in {job.path} has {name!r}, which the online loop cannot use; remove it")
    if job.bf16:
        raise Mistake(
            f"{job.path} sets `bf16`, which works only on a GPU, but the online loop learns on the CPU; remove it"
        )
    from ctrbox.loop.online_click_model import OnlineClickModel

    settings = {name: job.settings[name] for name in USED if name in job.settings}
    if batch_size is not None:
        settings["batch_size"] = batch_size
    learner = OnlineClickModel(
        job.plan, job.needed_model(), job.table, optimizer=job.optimizer, threads=threads, start=run, **settings
    )
    return learner.plan, learner


def told(found: dict[str, Any]) -> None:
    counts = found["counts"]
    before = found["learned"] - found["examples"]  # of an engine that the job loaded
    knew = f", besides {before:,} examples that the loaded engine had learned before" if before > 0 else ""
    tell(
        f"learned from {found['examples']:,} examples, {found['clicked']:,} clicked{knew}; {found['held']:,} impressions "
        f"wait for the end of their click window; version {found['version']}"
    )
    if found["unlearned"]:
        tell(f"  {found['unlearned']:,} examples wait until their batch is full")
    if found["examples"]:
        whole = (
            f"of the last complete window ({found['auc_examples']:,} examples)"
            if found["windows"]
            else "of all examples"
        )
        tell(
            f"loss {found['loss']:.6f} over all examples (the best constant prediction has {found['constant']:.6f}), AUC "
            f"{whole} {found['auc']:.6f}"
        )
    for name in (
        "duplicates",
        "late_impressions",
        "late_clicks",
        "lone_clicks",
        "outside_clicks",
        "future",
        "dropped_by_filters",
        "left_out",
        "refused_chunks",
    ):
        if counts[name]:
            tell(f"  {name.replace('_', ' ')}: {counts[name]:,}")


def datasets_events(
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of an ad log that `ctrbox datasets adlog` wrote.")
    ] = Path("data"),
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the chunk files to.")] = Path("events"),
    rows: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of impressions to write. Default: all rows of the log."),
    ] = None,
    chunk_rows: Annotated[int, typer.Option(metavar="N", min=1, help="Number of events per chunk file.")] = 10_000,
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="Format of the chunk files: parquet, arrow or jsonl.")
    ] = "parquet",
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0.001, help="Number of events to write per second. Default: as fast as possible."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="SEED", min=0, help="Seed of the stream; the same seed gives the same events.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Write an ad log as a stream of impressions and clicks."""
    from ctrbox.datasets import adlog_events

    began = time.perf_counter()
    events = adlog_events(data, out, rows=rows, chunk_rows=chunk_rows, format=format, events_per_s=rate, seed=seed)
    if as_json:
        say_json(events=events, out=str(out), seconds=time.perf_counter() - began)
    else:
        say(out)
    tell(f"wrote {events:,} events in {time.perf_counter() - began:.1f} s to {out}")
    hint(f"ctrbox online JOB.PY --stream {shlex.quote(str(out))} --out model")
