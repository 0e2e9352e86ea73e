"""What follows a training on the command line: evaluate, predict, trial, report, demo.

`ctrbox train` is in training_command.py. Registered by cli.py; torch and pyarrow are imported inside the functions.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctrbox.demo import best_auc, demo_job, generate
from ctrbox.ended import finish
from ctrbox.errors import CtrboxError, PlanError
from ctrbox.job import blaming, load_job
from ctrbox.options import Servers, in_words_of_options, pairs_of, vector_files
from ctrbox.output import check_output, sink
from ctrbox.terminal import Mistake, hint, meter, say, say_json, tell, written_aside
from ctrbox.training_command import AsJson, JobFile, Threads, Watch, fit, load_seeded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)]
OwnJob = Annotated[
    Path | None,
    typer.Option("--job", metavar="JOB.PY", help="The job, where its model or an operator is code of your own."),
]
OtherViews = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=DATA", help="Other data for a joined or merged view; may be given again."),
]
Ram = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Memory for the run's Sparse Tables, such as 500MB; 2GB each unless told."),
]


# ---- evaluate ------------------------------------------------------------------------------------

EVALUATE_EXAMPLES = """\b
Examples:
  ctrbox evaluate runs/job                     on the rows that the run held back
  ctrbox evaluate runs/job data/tomorrow       on another log with labels
  ctrbox evaluate runs/job tomorrow/impressions --view basic=tomorrow/basic
  ctrbox evaluate runs/images --server ad_image=images.ctrvec
"""


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Another log with labels: a path or glob.", show_default=False),
    ] = None,
    view: OtherViews = None,
    server: Servers = None,
    job: OwnJob = None,
    threads: Threads = None,
    ram: Ram = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained model on a log with labels."""
    from ctrbox.train.sealed import tidy
    from ctrbox.train.words import figure_table, remarks

    loaded = load_run(run, job, threads, ram, server)
    started = time.perf_counter()
    with meter("evaluating"), blaming(job), reading(data):
        found = loaded.evaluate(data, views=views_of(view, data))
    seconds = time.perf_counter() - started
    tell_of_servers(loaded)
    if as_json:
        say_json(**tidy({**found, "seconds": seconds, "run": str(run), "data": data}))
    else:
        for line in figure_table(found):
            say(line)
    for remark in remarks(found):
        tell(remark)
    tell(f"scored {found['rows']:,.0f} rows in {seconds:.1f} s ({found['rows'] / max(seconds, 1e-9):,.0f} rows/s)")
    if data is None:
        tell("these are the rows that the run held back for validation")
    with_servers = "".join(f" --server {shlex.quote(text)}" for text in server or [])
    hint(f"ctrbox predict {shlex.quote(str(run))} {shlex.quote(data or 'DATA')} -o predictions.parquet{with_servers}")


def views_of(asked: list[str] | None, data: str | None) -> dict[str, str]:
    found = pairs_of("--view", asked, "users=tomorrow/users")
    if found and data is None:
        raise Mistake("--view goes with another log; name it: ctrbox evaluate RUN DATA --view NAME=DATA")
    return found


def load_run(
    folder: Path, job: Path | None, threads: int | None, ram: str | None = None, server: list[str] | None = None
) -> Any:
    """A finished run; with a job, the model of the job's class and the job's operators."""
    if not folder.is_dir():
        near = sorted(str(p.parent) for p in Path("runs").glob("*/config.json"))[:5]
        raise Mistake(f"there is no run folder {folder}" + (f"; here are: {', '.join(near)}" if near else ""))
    own = None if job is None else load_job(job)
    from ctrbox.train.run import Run, other_plan, servers_of, trained_with

    if own is not None and own.plan.fingerprint != trained_with(folder):
        raise Mistake(f"{job} is not the job of {folder}: {other_plan(trained_with(folder), own.plan.fingerprint)}")
    files = vector_files(server)
    model = None if own is None else own.model
    try:
        servers = servers_of(folder, files) if files else {}
        run = Run.load(folder, model=model, allow_operators=own is not None, ram=ram, servers=servers)
    except PlanError as error:
        if "servers=" in str(error):
            with in_words_of_options():
                raise
        if own is not None or not ("cb.Run.load" in str(error) or "allow_operators" in str(error)):
            raise
        raise Mistake(f"{str(error).split(';')[0]}; name the job that has it: --job JOB.PY") from error
    if threads is not None:
        run.plan.threads = run.learner.threads = threads
    return run


def tell_of_servers(run: Any) -> None:
    """A file of other objects gives zeros, and scores that look like scores."""
    from ctrbox.embed.model_server import ModelServer

    for source in run.learner.sources:
        if isinstance(source.embedder, ModelServer):
            counts = source.embedder.stats()
            if counts["keys"] and not counts["computed"]:
                tell(
                    f"warning: no object of {source.fields[0]!r} has a row in {source.embedder.data.path}: all were zeros"
                )


@contextlib.contextmanager
def reading(data: str | None) -> Iterator[None]:
    try:
        with in_words_of_options():
            yield
    except OSError as error:
        if isinstance(error, CtrboxError):
            raise
        raise Mistake(f"cannot read {data or 'the log of the run'}: {error.strerror or error}") from error


# ---- predict -------------------------------------------------------------------------------------

PREDICT_EXAMPLES = """\b
Examples:
  ctrbox predict runs/job data/tomorrow -o predictions.parquet
  ctrbox predict runs/job data/tomorrow -o - | python read_arrow_stream.py
"""


def predict(
    run: RunFolder,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A log, labelled or not: a path or glob.", show_default=False)
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="*.parquet, *.arrow, *.csv, or - for an Arrow stream on stdout."
        ),
    ],
    view: OtherViews = None,
    server: Servers = None,
    job: OwnJob = None,
    threads: Threads = None,
    ram: Ram = None,
    as_json: AsJson = False,
) -> None:
    """Probabilities of a click for every row of a log that the plan's filters keep."""
    check_output(output, (".parquet", ".arrow", ".csv"), as_json)
    loaded = load_run(run, job, threads, ram, server)
    started = time.perf_counter()
    rows = 0
    with meter("predicting") as tick, sink(output, lambda part: part, lambda: keyed(loaded, None, None)) as write:
        with blaming(job), reading(data):
            for part in predictions(loaded, data, views_of(view, data)):
                write(part)
                rows += part.num_rows
                tick(rows)
    seconds = time.perf_counter() - started
    tell_of_servers(loaded)
    if as_json:
        say_json(rows=rows, seconds=seconds, rows_per_second=rows / seconds, output=output, run=str(run), data=data)
    where = "" if output == "-" else f" to {output}"
    tell(f"predicted {rows:,} rows in {seconds:.2f} s ({rows / max(seconds, 1e-9):,.0f} rows/s){where}")
    hint(f"ctrbox report {shlex.quote(str(run))}")


def predictions(run: Any, data: str, views: dict[str, str]) -> Iterator[pa.RecordBatch]:
    """Key columns and probability, in the order of the log; without a key, the probability alone."""
    import pyarrow as pa

    from ctrbox.plan.expr import col

    names = run.plan.log.key
    if not names:
        for p in run.predictions(data, views=views):
            yield keyed(run, None, p)
        return
    keys = run.plan.over(data, label=False, views=views).columns({name: col(name) for name in names})
    waiting: pa.Table | None = None
    try:
        for p in run.predictions(data, views=views):
            while waiting is None or waiting.num_rows < len(p):
                more = next(keys)
                waiting = more if waiting is None else pa.concat_tables([waiting, more])
            yield keyed(run, waiting.slice(0, len(p)), p)
            waiting = waiting.slice(len(p))
    finally:
        keys.close()


def keyed(run: Any, keys: pa.Table | None, p: np.ndarray | None) -> pa.RecordBatch:
    """One part of the predictions; without any, the columns they would have."""
    import pyarrow as pa

    columns = {} if keys is None else {name: keys.column(name).combine_chunks() for name in keys.column_names}
    if p is None:
        types = {name: run.plan.log.source.schema.field(name).type for name in run.plan.log.key}
        columns = {name: pa.array([], kind) for name, kind in types.items()}
    return pa.RecordBatch.from_pydict({**columns, "probability": pa.array([] if p is None else p, pa.float64())})


# ---- trial ---------------------------------------------------------------------------------------

TRIAL_EXAMPLES = """\b
Examples:
  ctrbox trial job.py --add "city_x_ad=cross('city', 'ad_id')"
  ctrbox trial job.py --add "tags=col('tags').split('|')" --add "h=col('ts').hour()" --limit 200000
"""


TRIAL_SETTINGS = ("valid", "batch_size", "epochs", "limit", "shuffle", "negatives", "clip", "seed", "schedule")


def trial(
    job: JobFile,
    add: Annotated[
        list[str], typer.Option(metavar="NAME=EXPR", help="A feature to try; given again, each is tried alone.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each side.")] = 3,
    together: Annotated[bool, typer.Option("--together", help="Try all of them at once.")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the log.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, metavar="ROWS", help="Rows of a step.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "--rows", min=1, help="Only the first rows of the log.")
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Is a model with one more feature better, by how much, and what does the feature cost?"""
    from ctrbox.plan.written import parse_features

    wanted = parse_features(add)
    loaded = load_seeded(job, 0)
    model = loaded.needed_model()
    from ctrbox.train.trial import trial as try_out

    asked = {"epochs": epochs, "batch_size": batch_size, "limit": limit}
    # A trial trains all sides equally long and keeps no run folder.
    usual = {k: v for k, v in loaded.settings.items() if k in TRIAL_SETTINGS}
    settings = {**usual, **{name: value for name, value in asked.items() if value is not None}}
    watch = Watch()
    try:
        with blaming(job):
            found = try_out(
                loaded.plan,
                model,
                wanted,
                table=loaded.table,
                seeds=seeds,
                together=together,
                optimizer=loaded.optimizer,
                threads=threads,
                progress=watch,
                **settings,
            )
    finally:
        watch.end()
    if as_json:
        say_json(**found.to_dict())
    else:
        say(found)
    hint(f"ctrbox train {shlex.quote(str(job))}")


# ---- report --------------------------------------------------------------------------------------

REPORT_EXAMPLES = """\b
Examples:
  ctrbox report runs/job
"""


def report(run: RunFolder, as_json: AsJson = False) -> None:
    """Write a run's report.html again and print its path."""
    from ctrbox.train.report import write_report

    place = write_report(run)
    if as_json:
        say_json(report=str(place))
    else:
        say(place)
    hint(f"ctrbox evaluate {shlex.quote(str(run))}")


# ---- demo ----------------------------------------------------------------------------------------

DEMO_EXAMPLES = """\b
Examples:
  ctrbox demo
  ctrbox demo --rows 200000 --out /tmp/demo     quicker, further from the best possible AUC
"""


def demo(
    rows: Annotated[int, typer.Option(min=1, help="Impressions to generate.")] = 2_000_000,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where data, job and run go.")] = Path("ctrbox-demo"),
    as_json: AsJson = False,
) -> None:
    """The whole path on an ad log: generate, train, evaluate, report."""
    started = time.perf_counter()
    generate(rows, 1, out / "data")
    tell(f"generated {rows:,} impressions in {time.perf_counter() - started:.1f} s: {out / 'data'}")

    path = out / "job.py"
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != demo_job():
        raise Mistake(f"{path} is there and is not the demo's; choose another --out, or move it")
    with written_aside(path) as aside:
        aside.write_text(demo_job(), encoding="utf-8")
    started = time.perf_counter()
    job = load_seeded(path, 0)
    tell(f"compiled {path} in {time.perf_counter() - started:.2f} s")

    place = out / "run"
    best = best_auc(job.plan, out / "data" / "truth")
    over = (place / "summary.json").exists()
    done = fit(job, place, {}, overwrite=over, best=best)
    finish(done, as_json)
    hint(f"ctrbox predict {shlex.quote(str(place))} {shlex.quote(str(out / 'data' / 'impressions'))} -o clicks.parquet")
