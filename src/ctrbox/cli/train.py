"""Defines ``ctrbox train``, which trains the model of a job into a run folder and resumes interrupted runs.

A run folder has one writer. Without --out the run goes to runs/<job>: an unfinished run there is resumed. A finished
run is kept, and the new one gets the next free name: runs/<job>-2, -3 and so on. Ctrl-C and SIGTERM leave a checkpoint
and print the command that resumes it. ``main.py`` registers the command; torch and pyarrow are imported inside the
functions.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctrbox.cli.job_file import Job, blaming, load_job
from ctrbox.cli.open_runs import evaluate_command
from ctrbox.cli.options import AsJson, BatchSize, Epochs, in_words_of_options
from ctrbox.cli.ranks import RANK_TIMEOUT, check_job, command_again, end_of_rank, joined, threads_of
from ctrbox.cli.terminal import Mistake, Stopped, hint, stopped_with, tell, utf8, written_aside
from ctrbox.cli.training_summary import Done, finish
from ctrbox.errors import CtrboxError

if TYPE_CHECKING:
    from ctrbox.files.stored_folder import StoredFolder
    from ctrbox.ranks.ranks import Ranks
    from ctrbox.train.progress_line import Progress

JobFile = Annotated[
    Path,
    typer.Argument(metavar="JOB.PY", help="Job file: a Python file that defines `plan` and `model`."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Number of worker threads. Default: all cores.",
    ),
]
ThreadsOfRanks = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Number of worker threads in each process. Default: all cores, divided evenly among the processes of --ranks.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "--rows",
        min=1,
        metavar="ROWS",
        help="Train and validate on only the first ROWS rows of the log. Default: the job's setting, otherwise all rows.",
    ),
]

# Rows a second on a terminal move by themselves; in a log a line now and then is enough.
LOG_SECONDS = 15.0
# What each kind of --warm-up takes over from an earlier run.
TAKEN = {
    "partial": "the weights and the sub-models, without the rows of tables,",
    "full": "the weights and tables",
    "continue": "the weights, tables and optimizer states",
}
TRAIN_EXAMPLES = """\b
Examples:
  ctrbox train job.py
  ctrbox train job.py --limit 100000                train on the first 100,000 rows only
  ctrbox train job.py --out runs/today --epochs 2
  ctrbox train job.py --out s3://bucket/today       keep the run on S3; resume it on another machine
  ctrbox train job.py --valid data/tomorrow         validate on another log
  ctrbox train job.py --from runs/yesterday         continue from yesterday's run with today's log
  ctrbox train job.py --ranks 4                     train with 4 processes on this machine
  ctrbox train job.py --gpus 8                      train on 8 GPUs of this machine, one process per GPU
  ctrbox train job.py --cluster local --workers 4 --servers 2      train with 4 workers on a Ray cluster on this machine
"""


def train(
    job: JobFile,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="Folder of the run: a local path, s3://bucket/folder or hdfs://host/folder. Default: runs/<job>, or "
            "runs/<job>-2 and so on if that folder already contains a finished run.",
        ),
    ] = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    limit: Limit = None,
    valid: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|DATA",
            help="Rows on which the model is validated: either a share of the log, from 0 (no validation) to 0.9, taken "
            "from the end of the log, or the path of another log with labels. Default: the job's setting, otherwise "
            "0.1.",
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            "--learning-rate",
            metavar="RATE",
            help="Learning rate of the embedding tables, above 0 (for FTRL: its parameter alpha). It replaces the learning "
            "rate of the job; the rows and optimizer states of the tables stay as they are. Default: the job's "
            "setting.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**63 - 1,
            metavar="SEED",
            help="Seed of all random choices; the same seed on the same machine gives the same weights. Default: the job's "
            "setting, otherwise 0.",
        ),
    ] = None,
    negatives: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the training rows without a click that is kept (downsampling), 0.000001 to 1. The model does not "
            "learn from the other rows without a click. Predictions are corrected for the rows that are left out. "
            "Default: the job's setting, otherwise 1.",
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="platt|isotonic|weights|intercept|NUMBER",
            help="How to correct predictions after training. 'platt' (a logistic curve) and 'isotonic' (a rising step "
            "function) map scores to click rates. The map is fitted to the last tenth of the training rows, and the "
            "model does not learn from these rows. 'weights', 'intercept' and NUMBER correct for sample weights by "
            "adding one number to every logit. 'weights' adds log(w0 / w1), where w0 is the weight of a row "
            "without a click, and w1 is the weight of a row with a click. 'intercept' adds the number that "
            "makes the sum of the predictions on the validation rows equal to their number of clicks. NUMBER adds this number, "
            "which must be above -50 and below 50. Default: the job's setting, otherwise no correction.",
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="EVALUATIONS",
            help="Stop after this number of evaluations in a row without a better result, and keep the best weights; needs "
            "validation rows. Default: the job's setting, otherwise train all epochs.",
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="Number of steps between evaluations. Default: the job's setting, otherwise once per epoch.",
        ),
    ] = None,
    look_ahead: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=64,
            metavar="BATCHES",
            help="Number of batches to extract ahead of the training and keep on disk, 0 to 64. A Sparse Table that is "
            "larger than memory then keeps those rows in memory that are needed again soon. Default: the job's "
            "setting, otherwise 0.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            help="Continue an unfinished run in the run folder from its last checkpoint. With --no-resume, a new run starts in "
            "the first free folder of runs/<job>, runs/<job>-2 and so on; if --out names the folder of an unfinished run, "
            "the command ends with an error."
        ),
    ] = True,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the run in the run folder and start from step 0; see also --tables."),
    ] = False,
    tables: Annotated[
        str | None,
        typer.Option(
            metavar="empty|keep",
            help="What to do if a table already holds rows when the training starts: 'empty' removes the rows before the "
            "first step, 'keep' continues to train them. Default: keep, with a warning. The option is required with "
            "--overwrite if a table holds rows.",
        ),
    ] = None,
    earlier: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Finished run from which the new run starts. The new run begins with the weights, tables and optimizer "
            "states of this run, or with the part of them that --warm-up names. The finished run itself does not "
            "change. Default: start with new weights.",
        ),
    ] = None,
    warm_up: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What to take over from the run of --from: 'partial' (the weights of the model and the sub-models of "
            "Model Servers, but no rows of tables), 'full' (the weights, the sub-models and the tables) or 'continue' "
            "(all of these and the optimizer states). Default: continue.",
        ),
    ] = None,
    decay: Annotated[
        str | None,
        typer.Option(
            metavar="FACTOR:STEPS",
            help="Multiply all learning rates by FACTOR, above 0 and at most 1, every STEPS steps, such as 0.9:1000. "
            "Default: the job's schedule, otherwise constant rates.",
        ),
    ] = None,
    adaptive_l2: Annotated[
        float | None,
        typer.Option(
            metavar="PENALTY",
            help="L2 penalty of the rows of tables, 0 to 1000000. For each row, the penalty is divided by the number of "
            "times that the key of the row has occurred. Default: the job's setting, otherwise 0.",
        ),
    ] = None,
    common: Annotated[
        list[str] | None,
        typer.Option(
            "--common",
            metavar="FIELD",
            help="Field (sparse feature) with many keys per row that are the same in all rows of one group, such as a "
            "user's history. The keys are then looked up and pooled once per group and batch, instead of once per "
            "row. May be repeated. Default: the job's `common`, otherwise none.",
        ),
    ] = None,
    tuned: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of a `ctrbox tune` study, such as tune/job; train with the parameters of its best trial. "
            "Default: the parameters of the job.",
        ),
    ] = None,
    threads: ThreadsOfRanks = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS|local",
            help="Address of the Ray cluster to train on: host:port, 'auto' for the cluster that this machine belongs to, or "
            "'local' to start one on this machine. Default: train in this process.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=1024, help="Number of workers on the cluster; each trains on a part of every batch."
        ),
    ] = 1,
    servers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=1024,
            help="Number of parameter servers on the cluster; each holds a shard of the tables.",
        ),
    ] = 1,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1024,
            help="Number of processes on this machine that train together, without Ray. Each process trains on a part of "
            "every batch and holds a part of the tables. If torchrun starts the processes, it sets this number. "
            "Default: 1.",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1024,
            help="Train on the first N GPUs of this machine: cuda:0, cuda:1 and so on. --ranks sets the number of "
            "processes; without --ranks, there is one process per GPU. Default: train in one process, on the device "
            "that the job names.",
        ),
    ] = None,
    exchange: Annotated[
        str,
        typer.Option(
            metavar="auto|nccl|gloo",
            help="How several processes on GPUs exchange tensors: 'nccl' directly between GPUs, which needs one "
            "process per GPU; "
            "'gloo' through main memory; 'auto' chooses nccl if every process has a GPU of its own, otherwise gloo.",
        ),
    ] = "auto",
    rank_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1.0,
            help="Seconds, at least 1, that a process of --ranks waits for another one. It then ends with an error that names "
            "the other process.",
        ),
    ] = RANK_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Train the model of a job and write a report.

    The command reads the raw log, extracts the features and trains the model on them. It writes the weights, the
    tables, the metrics and report.html to the run folder. If you stop the training with Ctrl-C, the same command
    continues it from the last checkpoint.
    """
    asked: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "limit": limit,
        "seed": seed,
        "negatives": negatives,
        "calibrate": calibration(calibrate),
        "patience": patience,
        "evaluate_every": evaluate_every,
        "look_ahead": look_ahead,
        "adaptive_l2": adaptive_l2,
        "schedule": decay_of(decay),
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if cluster is None and (workers, servers) != (1, 1):
        raise Mistake(
            "--workers and --servers need a cluster; add --cluster local, or --cluster with the address of a "
            "Ray cluster"
        )
    together = joined(ranks, rank_timeout, cluster, gpus, exchange)
    leads = together is None or together.leads
    place, going_on = run_place(job, out, resume, overwrite)
    check_earlier(earlier, place)
    loaded = load_seeded(job, seed or 0)
    if earlier is not None:
        for name in {"warm_up", "warm_from"} & loaded.settings.keys():
            raise Mistake(f"`settings` in {job} has {name!r}, which --from also sets; remove one of the two")
        asked |= {"warm_up": warm_up or "continue", "warm_from": str(earlier)}
    elif warm_up is not None:
        raise Mistake(f"--warm-up {warm_up} needs the run to start from; add --from RUN")
    if tables is not None:
        asked["tables"] = tables
    if tuned is not None:
        loaded, asked = with_tuned(loaded, tuned, asked)
    if not leads:
        pass  # rank 0 tells it
    elif going_on:
        tell(f"continuing the unfinished run in {place}")
    elif out is None and isinstance(place, Path) and place.name != job.stem:
        tell(
            f"{place.with_name(job.stem)} holds a finished run, so this run is written to {place}; "
            "--overwrite replaces the old run instead"
        )
    if earlier is not None and not going_on and leads:
        tell(
            f"starting from {TAKEN.get(warm_up or 'continue', warm_up)} of {earlier}; steps, schedule and metrics start at 0"
        )
    where = None if cluster is None else (cluster, workers, servers)
    done = fit(
        loaded,
        place,
        asked,
        valid=valid,
        threads=threads,
        resume=resume,
        overwrite=overwrite,
        cluster=where,
        lr=lr,
        common=common,
        ranks=together,
        gpus=gpus,
    )
    finish(done, as_json)
    hint(evaluate_command(place, job) if isinstance(place, Path) else evaluate_command(place.path, job, str(place)))


def calibration(given: str | None) -> str | float | None:
    """Parse --calibrate: return a number as a float, and a name as it is."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given


def decay_of(given: str | None) -> Any:
    """Parse --decay, and return the schedule."""
    if given is None:
        return None
    from ctrbox.train.schedule import Decay

    factor, colon, steps = given.partition(":")
    try:
        if not colon:
            raise ValueError
        return Decay(float(factor), int(steps))
    except ValueError:
        raise Mistake(f"--decay {given}: expected FACTOR:STEPS, such as 0.9:1000") from None
    except CtrboxError as error:
        raise Mistake(f"--decay {given}: {error}") from None


def run_place(job: Path, out: str | None, resume: bool, overwrite: bool) -> tuple[Path | StoredFolder, bool]:
    """Return the folder of a run, and whether it contains an unfinished run that will be continued."""
    if out is not None:
        given = place_of(out)
        finished, begun = holds(given, "summary.json"), holds(given, "config.json")
        if finished and not overwrite:
            raise Mistake(f"{out} holds a finished run; choose another --out, or replace it with --overwrite")
        if begun and not resume and not overwrite:
            raise Mistake(
                f"{out} holds an unfinished run; remove --no-resume to continue it, or replace it with --overwrite"
            )
        return given, holds(given, "checkpoints") and not finished and not overwrite
    number = 1
    while True:
        place = Path("runs") / (job.stem if number == 1 else f"{job.stem}-{number}")
        finished, begun = (place / "summary.json").exists(), (place / "config.json").exists()
        if not begun or overwrite:
            return place, False
        if not finished and resume:
            return place, holds(place, "checkpoints")
        number += 1


def with_tuned(job: Job, folder: Path, asked: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
    """Return the job with the best parameters of a study. Options of the command line take precedence."""
    from ctrbox.train.tuning import best_of, space_of

    with blaming(job.path):
        parts, arguments = best_of(folder, space_of(job.tune, job.path))
    return replace(job, **parts, settings={**job.settings, **arguments}, tuned=folder), asked


def check_earlier(earlier: Path | None, place: Path | StoredFolder) -> None:
    """Refuse an earlier run (--from) that is not finished, or that the new run would replace."""
    if earlier is None:
        return
    if not (earlier / "summary.json").exists():
        near = sorted(str(p.parent) for p in Path("runs").glob("*/summary.json"))[:5]
        raise Mistake(
            f"{earlier} holds no finished run" + (f"; these runs are finished: {', '.join(near)}" if near else "")
        )
    if isinstance(place, Path) and place.exists() and place.samefile(earlier):
        raise Mistake(f"--from {earlier} is also the folder into which this run would be written; choose another --out")


def place_of(out: str) -> Path | StoredFolder:
    """Return a local folder as a path, and a folder on S3 or HDFS as a `StoredFolder`."""
    from ctrbox.files.urls import stored_url

    url = stored_url(out, "a run folder")
    if url is None:
        return utf8(Path(out))
    from ctrbox.files.stored_folder import StoredFolder

    return StoredFolder(url, "a run folder")


def holds(place: Path | StoredFolder, name: str) -> bool:
    """Return whether a run folder has this file, or this folder with something in it."""
    if not isinstance(place, Path):
        return place.holds(name)
    found = place / name
    return any(found.glob("[!.]*")) if found.is_dir() else found.exists()


def load_seeded(path: Path, seed: int) -> Job:
    """Load a job after seeding torch, so that its model starts with the same weights every time."""
    if path.is_file():  # a wrong name is told before torch is waited for
        import torch

        torch.manual_seed(seed)
    return load_job(path)


def fit(
    job: Job,
    place: Path | StoredFolder,
    asked: Mapping[str, Any],
    *,
    valid: str | None = None,
    threads: int | None = None,
    resume: bool = True,
    overwrite: bool = False,
    best: float | None = None,
    cluster: tuple[str, int, int] | None = None,
    lr: float | None = None,
    common: Sequence[str] | None = None,
    ranks: Ranks | None = None,
    gpus: int | None = None,
) -> Done:
    """Train into a folder and write the report. After Ctrl-C, the command that resumes the run is printed."""
    model, plan = job.needed_model(), job.plan
    command = ["ctrbox", "train", str(job.path), "--out", str(place)]
    if ranks is not None:
        check_job(job, asked)
    for name, value in [*asked.items(), ("lr", lr), ("valid", valid), ("threads", threads)]:
        if name == "schedule":
            command += ["--decay", f"{value.factor!r}:{value.every}"]
        elif value is not None and (name, value) != ("warm_up", "continue"):
            command += ["--from" if name == "warm_from" else f"--{name.replace('_', '-')}", str(value)]
    command += [word for name in common or () for word in ("--common", name)]
    if job.tuned is not None:
        command += ["--tuned", str(job.tuned)]
    if cluster is not None:
        address, workers, servers = cluster
        command += ["--cluster", address, "--workers", str(workers), "--servers", str(servers)]
    if gpus is not None and ranks is None:
        command += ["--gpus", str(gpus)]
    if ranks is not None:
        command = command_again(ranks, command)
    if ranks is not None and threads is None:
        threads = threads_of(ranks.world)
    if threads is not None:
        plan = plan.using(threads=threads)
    from ctrbox.train.trainer import Trainer

    watch = Watch()
    try:
        with blaming(job.path), in_words_of_options():
            settings = {**job.settings, **asked, "callbacks": job.callbacks}
            if valid is not None:
                settings["valid"] = validation(plan, valid)
            if best is not None:
                settings["best_auc"] = best
            if cluster is not None:
                from ctrbox.cluster.cluster import Cluster

                settings["cluster"] = Cluster(address, workers=workers, servers=servers, cores=threads, tell=tell)
            if ranks is not None:
                settings["cluster"] = ranks
            shared = job.common if common is None else tuple(common)
            given = {"optimizer": job.optimizer, "threads": threads, "bf16": job.bf16, "lr": lr, "common": shared}
            trainer = Trainer(model, job.table, device="auto" if gpus is None else "cuda", **given)
            run = trainer.fit(plan, out=place, resume=resume, overwrite=overwrite, progress=watch, **settings)
    except (KeyboardInterrupt, Stopped):
        if holds(place, "config.json"):
            stopped_with(f"resume: {shlex.join(command)}")
        raise
    except Exception as error:
        if ranks is not None:
            watch.end()
            end_of_rank(ranks, error)
        raise
    finally:
        watch.end()
        if ranks is not None:
            ranks.leave()
    remember(place if isinstance(place, Path) else place.path, command)
    report = run.report()
    return Done(run, place, str(report) if isinstance(place, Path) else place.shown("report.html"))


def validation(plan: Any, valid: str) -> Any:
    """Parse --valid: return the share of the log, or the plan over another log."""
    try:
        return float(valid)
    except ValueError:
        return plan.over(valid)


def remember(place: Path, command: list[str]) -> None:
    """Store the command in config.json, for the report. The run does not depend on it."""
    from ctrbox.files.sealed_json import read_sealed, sealed

    file = place / "config.json"
    config = read_sealed(file, "run folder")
    with written_aside(file) as aside:
        aside.write_text(sealed({**config, "command": command}), encoding="utf-8")


class Watch:
    """Shows progress on stderr: one moving line on a terminal, and otherwise a new line from time to time.

    With ``quiet``, evaluations are not printed.
    """

    def __init__(self, quiet: bool = False) -> None:
        from ctrbox.train.progress_line import Line

        self.line, self.quiet = Line() if sys.stderr.isatty() else None, quiet
        self.told = time.monotonic()

    def see(self, progress: Progress) -> None:
        if self.line is not None:
            self.line.see(progress)
        elif time.monotonic() - self.told >= LOG_SECONDS:
            self.told = time.monotonic()
            left = progress.seconds_left
            tell(
                f"{progress.share:>4.0%}  {progress.rows:,} rows, {progress.rows_per_second:,.0f} rows/s  {progress.shown}  "
                f"loss {progress.loss:.4f}" + (f"  {left:,.0f} s left" if left is not None else "")
            )

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        if self.quiet:
            return
        if self.line is not None:
            self.line.evaluated(metrics)
        else:
            from ctrbox.report.number_format import brief

            tell(f"validation  {brief(metrics)}")

    def resumed(self, step: int, rows: int) -> None:
        tell(f"continuing after step {step:,} ({rows:,} rows)")

    def end(self) -> None:
        """Remove the line. This is also done after an error, because the cursor of the terminal must appear again."""
        if self.line is not None:
            self.line.end()
