"""Defines the root command ``ctrbox`` and the commands that run a plan: extract, explain, show, datasets and version.

`train` is in train.py, and what follows a training run is in after_training.py.

Data goes to stdout, everything else to stderr. Exit codes: 0 done; 1 an error in the job, the data or the disk, shown
as one line; 2 a wrong command line; 130 Ctrl-C; 143 SIGTERM. `CTRBOX_TRACEBACK=1` shows the traceback behind a one-line
error.

Nothing heavy is imported at the top: `ctrbox --help` does not wait for pyarrow or torch.
"""

# ruff: noqa: E402
from __future__ import annotations

import os
import signal
import threading

# Ctrl-C in the tenth of a second in which modules load: there is nothing to tidy, and a traceback helps nobody.
LOADING = threading.current_thread() is threading.main_thread() and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if LOADING:
    signal.signal(signal.SIGINT, lambda number, frame: (os.write(2, b"ctrbox: stopped\n"), os._exit(128 + number)))

import json
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ctrbox.cli import after_training, online, publish, search, serve, table, train, tune, vectors
from ctrbox.cli.demo import generate
from ctrbox.cli.help_text import Commands
from ctrbox.cli.job_file import batches, load_plan
from ctrbox.cli.open_runs import plan_at
from ctrbox.cli.options import AllowOperators, AsJson, RowsAsJson, in_words_of_options
from ctrbox.cli.output import check_output, no_rows, sink
from ctrbox.cli.terminal import Mistake, hint, meter, run, say, say_json, tell, written_aside
from ctrbox.cli.training_summary import told_losses

EXAMPLES = """\b
Examples:
  ctrbox demo                              generate an ad log, train a model on it, write a report
  ctrbox extract job.py --count            measure how fast the job's features are extracted
  ctrbox train job.py                      train the job's model and write a report
  ctrbox predict runs/job data -o clicks.parquet
  ctrbox serve model/                      answer prediction requests over HTTP
"""

app = Commands(
    help="Read raw ad logs, extract features, train models that predict clicks, and serve their predictions.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
datasets_app = Commands(
    help="Generate synthetic data for demonstrations and tests.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(datasets_app, name="datasets")
app.add_typer(table.app, name="table")
app.add_typer(publish.app, name="publish")
app.add_typer(vectors.app, name="vectors")

JobFile = Annotated[Path, typer.Argument(metavar="JOB.PY", help="Job file: a Python file that defines `plan`.")]
JobOrPlan = Annotated[
    Path,
    typer.Argument(
        metavar="JOB.PY|RUN|PLAN",
        help="Job file (a Python file that defines `plan`), run folder, folder of a served model, or saved plan file.",
    ),
]


def ended_with_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def before_every_verb(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=ended_with_version, is_eager=True, help="Print the version of CTRBox and exit."
        ),
    ] = False,
) -> None:
    pass


# ---- verbs ---------------------------------------------------------------------------------------


@app.command(
    epilog="""\b
Examples:
  ctrbox extract job.py --count
  ctrbox extract job.py -o features.parquet
  ctrbox extract job.py --limit 1000 -o - | """
    'python -c "import sys, pyarrow.ipc as ipc; print(ipc.open_stream(sys.stdin.buffer).read_all())"\n'
)
def extract(
    job: JobFile,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write the features to, *.parquet or *.arrow. If FILE is a hyphen (-), an Arrow stream is written "
            "to stdout. Required unless --count is given.",
        ),
    ] = None,
    count: Annotated[
        bool, typer.Option("--count", help="Extract the features without writing them, and print the number of rows.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=0, metavar="ROWS", help="Maximum number of rows to read from the log. Default: all rows."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="ROWS", help="Number of rows per batch.")] = 65_536,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of worker threads. Default: all cores.")
    ] = None,
    as_json: RowsAsJson = False,
) -> None:
    """Extract the features of a job's log to a file.

    The command reads the log and the joined views of the job, and writes the features to a Parquet or Arrow file
    (-o). With --count, it extracts the features without writing them, and prints the number of rows. In both cases, it
    prints the time and the rows of each stage of the extraction to stderr.
    """
    if count == (output is not None):
        raise Mistake(f"extract needs either -o FILE or --count; try: ctrbox extract {job} --count")
    if output is not None:
        check_output(output, (".parquet", ".arrow"), as_json)

    plan = load_plan(job)
    if threads is not None:
        plan = plan.using(threads=threads)
    started = time.perf_counter()
    with meter("extracting") as tick, sink(output, lambda b: b.to_arrow(), lambda: no_rows(plan.schema)) as write:
        rows = 0
        for batch in batches(plan, job, batch_size, limit):
            write(batch)
            rows += batch.rows
            tick(rows)
    seconds = time.perf_counter() - started

    if as_json:
        say_json(
            rows=rows,
            seconds=seconds,
            rows_per_second=rows / seconds,
            stages=dict(plan.stats),
            warnings=dict(plan.warnings),
            casts=[asdict(cast) for cast in plan.casts if cast.lost],
            output=output,
        )
    elif count:
        say(rows)
    tell_stages(plan, rows, seconds, "" if output in (None, "-") else f" to {output}")
    shown = shlex.quote(str(job))
    hint(f"ctrbox explain {shown}" if output in (None, "-") else f"ctrbox show {shown} -o plan.svg")


@app.command(
    epilog="""\b
Examples:
  ctrbox explain job.py
  ctrbox explain job.py --device cuda:32GB      placement on a GPU with 32 GB, which this machine need not have
  ctrbox explain runs/job                       the plan of a run
  ctrbox explain click.plan                     a plan that plan.save("click.plan") wrote
"""
)
def explain(
    job: JobOrPlan,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Device on which the operators should run: cpu, cuda, cuda:32GB (a GPU with this much memory) or auto (a "
            "GPU if one can be used). Default: the device that the plan names.",
        ),
    ] = None,
    allow_operators: AllowOperators = False,
    as_json: AsJson = False,
) -> None:
    """Describe a plan: its operators, where they run, rows and bytes.

    For every operator, the output says on which device the operator runs, and why. For a run or a saved plan, the
    command opens no data, and shows the numbers of rows and bytes that were known when the plan was saved.
    """
    plan = plan_at(job, allow_operators)
    if as_json:
        say_json(**plan.explain(device, json=True))
    else:
        say(plan.explain(device))
    hint(f"ctrbox show {shlex.quote(str(job))} -o plan.svg")


@app.command(
    epilog="""\b
Examples:
  ctrbox show job.py -o plan.svg
  ctrbox show runs/job -o plan.svg
"""
)
def show(
    job: JobOrPlan,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="SVG file for the drawing.")] = Path(
        "plan.svg"
    ),
    allow_operators: AllowOperators = False,
) -> None:
    """Draw a plan as an SVG image.

    The drawing has one lane for each view; the lanes of the joined views are above the lane of the log. A lane
    shows the operators of its view in the order in which they run. An operator that runs before a join is in the
    lane of the joined view.
    """
    if output.suffix.lower() not in ("", ".svg"):
        raise Mistake(f"{output} cannot be written: show writes SVG; expected a file name that ends in .svg")
    plan = plan_at(job, allow_operators)
    with written_aside(output) as aside:
        plan.show(str(aside))
    tell(f"wrote {output}")
    shown = shlex.quote(str(job))
    hint(f"ctrbox extract {shown} --count" if job.suffix == ".py" else f"ctrbox explain {shown}")


app.command(epilog=train.TRAIN_EXAMPLES)(train.train)
app.command(epilog=tune.TUNE_EXAMPLES)(tune.tune)
app.command(epilog=after_training.EVALUATE_EXAMPLES)(after_training.evaluate)
app.command(epilog=after_training.PREDICT_EXAMPLES)(after_training.predict)
app.command(epilog=after_training.EXPORT_EXAMPLES)(after_training.export)
app.command(epilog=after_training.TRIAL_EXAMPLES)(after_training.trial)
app.command(epilog=after_training.REPORT_EXAMPLES)(after_training.report)
app.command(epilog=after_training.DEMO_EXAMPLES)(after_training.demo)
app.command(epilog=online.ONLINE_EXAMPLES)(online.online)
datasets_app.command("events", epilog=online.EVENTS_EXAMPLES)(online.datasets_events)
app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=search.SEARCH_EXAMPLES)(search.search)


@datasets_app.command(
    "adlog",
    epilog="""\b
Examples:
  ctrbox datasets adlog --rows 100000 --out data
  ctrbox datasets adlog --rows 100000 --out data --images 4096      add images of 4096 floats to the ads
  ctrbox datasets adlog --rows 200000 --out data --overwrite        replace the log in data
""",
)
def datasets_adlog(
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Number of impressions to generate.")] = 1_000_000,
    seed: Annotated[
        int, typer.Option(metavar="SEED", min=0, help="Seed of the log; the same seed gives the same rows.")
    ] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to write to. It gets one folder for each view.")
    ] = Path("data"),
    images: Annotated[
        int, typer.Option(metavar="N", min=0, help="Number of floats per ad image, such as 4096. 0 writes no images.")
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a different ad log in DIR. Default: end with an error.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Generate a synthetic ad log.

    The log consists of four views: impressions, users, ads, and basic features (features that were computed
    earlier). With --images, there is also a view with the images of the ads.
    """
    started = time.perf_counter()
    with in_words_of_options():
        generate(rows, seed, out, images, overwrite=overwrite)
    seconds = time.perf_counter() - started
    if as_json:
        say_json(rows=rows, seed=seed, out=str(out), seconds=seconds)
    else:
        say(out)
    tell(f"generated {rows:,} impressions in {seconds:.1f} s in folder {out}")
    code = f"import ctrbox as cb; print(cb.View({json.dumps(str(out / 'impressions'))}).head())"
    hint(f"python -c {shlex.quote(code)}")


@datasets_app.command("list", epilog="\b\nExamples:\n  ctrbox datasets list\n  ctrbox datasets list --json\n")
def datasets_list(as_json: AsJson = False) -> None:
    """List the data sets that `cb.datasets` generates or reads."""
    from ctrbox import datasets

    known = {}
    for name in sorted(datasets.__all__):
        thing = getattr(datasets, name)
        if not isinstance(thing, type) and callable(thing):
            known[name] = (thing.__doc__ or "").strip().split("\n")[0]
    if as_json:
        say_json(**known)
    else:
        for name, line in known.items():
            say(f"{name:<20} {line}")
    hint("ctrbox datasets adlog --rows 100000 --out data")


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version of CTRBox."""
    from ctrbox import __version__

    if as_json:
        say_json(ctrbox=__version__, python=sys.version.split()[0])
    else:
        say(f"ctrbox {__version__}")


def tell_stages(plan: Any, rows: int, seconds: float, where: str) -> None:
    """Print rows per second, the time of each stage if the plan knows it, the keys without a row, and the values that
    were lost.
    """
    tell(f"extracted {rows:,} rows in {seconds:.2f} s ({rows / max(seconds, 1e-9):,.0f} rows/s){where}")
    for stage, spent in plan.stats.items():
        stage_rows, stage_seconds = int(spent.get("rows", 0)), float(spent.get("seconds", 0.0))
        rate = f"{stage_rows / stage_seconds:>14,.0f} rows/s" if stage_seconds > 0 else ""
        tell(f"  {stage:<24}{stage_rows:>12,} rows {stage_seconds:>9.3f} s{rate}")
    for join in plan.joins:
        if join.missed:
            tell(
                f"  join with view {join.view} on {', '.join(join.on)}: {join.share:.1%} of {join.keys:,} keys have "
                "no row in this view"
            )
    for line in told_losses(plan.warnings, [asdict(cast) for cast in plan.casts]):
        tell(line)


def main() -> NoReturn:
    run(lambda: typer.main.get_command(app).main(prog_name="ctrbox"))


if LOADING:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    main()
