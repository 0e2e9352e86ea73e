"""Defines the commands that follow a training run: evaluate, predict, trial, report and demo.

`ctrbox train` is in train.py. Registered by main.py; torch and pyarrow are imported inside the functions.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctrbox.cli.demo import best_auc, demo_job, generate
from ctrbox.cli.job_file import blaming
from ctrbox.cli.open_runs import (
    AllowViews,
    HistoryState,
    OtherViews,
    OwnJob,
    Ram,
    RunFolder,
    evaluate_command,
    fetched,
    load_run,
    reading,
    tell_of_servers,
)
from ctrbox.cli.options import AsJson, BatchSize, Epochs, RowsAsJson, Servers
from ctrbox.cli.output import check_output, sink
from ctrbox.cli.terminal import Mistake, hint, meter, say, say_json, tell, written_aside
from ctrbox.cli.train import JobFile, Limit, Threads, Watch, fit, load_seeded
from ctrbox.cli.training_summary import finish
from ctrbox.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from ctrbox.predict.score_expression import ScoreExpression

# ---- evaluate ------------------------------------------------------------------------------------

EVALUATE_EXAMPLES = """\b
Examples:
  ctrbox evaluate runs/job                     use the rows that the run held back for validation
  ctrbox evaluate runs/job data/tomorrow       use another log with labels
  ctrbox evaluate runs/job tomorrow/impressions --view basic=tomorrow/basic
  ctrbox evaluate runs/job --allow-views /data      the run's views lie outside the current folder
  ctrbox evaluate runs/own --job own.py             the model's class is defined in own.py
  ctrbox evaluate runs/images --server ad_image=images.ctrvec
"""


def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Path or glob of a log with labels. Default: the rows that the run held back for validation.",
        ),
    ] = None,
    view: OtherViews = None,
    allow_views: AllowViews = None,
    state: HistoryState = None,
    server: Servers = None,
    job: OwnJob = None,
    threads: Threads = None,
    ram: Ram = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained model on a log with labels.

    The command predicts every row of the log and prints AUC, log loss and the other validation metrics.
    """
    from ctrbox.files.sealed_json import tidy
    from ctrbox.report.number_format import figure_table, remarks

    options: dict[str, Any] = {"allow_views": allow_views, "threads": threads, "ram": ram, "server": server}
    if state is not None and data is None:
        raise Mistake(
            "--state needs DATA: FILE holds the earlier events from which the histories of the log DATA continue. Use: "
            "ctrbox evaluate RUN DATA --state FILE"
        )
    loaded = load_run(run, job, view=view, **options)
    started = time.perf_counter()
    with meter("evaluating"), blaming(job), reading(data):
        found = loaded.evaluate(data, histories=state)
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
    words = ["ctrbox", "predict", str(run), data or "DATA", "-o", "predictions.parquet"]
    words += ["--job", str(job)] if job is not None else []
    for option, given in (("--view", view), ("--allow-views", allow_views), ("--server", server)):
        words += [word for text in given or [] for word in (option, text)]
    hint(shlex.join(words))


# ---- predict -------------------------------------------------------------------------------------

PREDICT_EXAMPLES = (
    """\b
Examples:
  ctrbox predict runs/job data/tomorrow -o predictions.parquet
  ctrbox predict runs/job data/tomorrow -o - | """
    'python -c "import sys, pyarrow.ipc as ipc; print(ipc.open_stream(sys.stdin.buffer).read_all())"\n'
    """\
  ctrbox predict runs/several data/tomorrow -o scores.parquet --score "click * convert"
"""
)


def predict(
    run: RunFolder,
    data: Annotated[str, typer.Argument(metavar="DATA", help="Path or glob of a log, with or without labels.")],
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File for the predictions: *.parquet, *.arrow or *.csv. If FILE is a hyphen (-), an Arrow stream is "
            "written to stdout.",
        ),
    ],
    score: Annotated[
        str | None,
        typer.Option(
            metavar="EXPR",
            help="Add a column named score, computed from the predictions of several labels by this expression, such as "
            "'click * convert'. The expression may contain + - * /, numbers, parentheses, names of labels and pow(a, "
            "b). Default: no such column.",
            show_default=False,
        ),
    ] = None,
    view: OtherViews = None,
    allow_views: AllowViews = None,
    state: HistoryState = None,
    server: Servers = None,
    job: OwnJob = None,
    threads: Threads = None,
    ram: Ram = None,
    as_json: RowsAsJson = False,
) -> None:
    """Predict the click probability of every row of a log.

    The command reads a log, and writes a file with one row for each prediction. A row has the key columns of the
    log and the predicted probability. If the model predicts several labels, a row has one column for each label.
    Rows of the log that the filters of the plan drop get no prediction.
    """
    check_output(output, (".parquet", ".arrow", ".csv"), as_json)
    options: dict[str, Any] = {"allow_views": allow_views, "threads": threads, "ram": ram, "server": server}
    loaded = load_run(run, job, view=view, **options)
    columns = Columns(loaded, None if score is None else expression(loaded, score))
    started = time.perf_counter()
    rows = 0
    with meter("predicting") as tick, sink(output, lambda part: part, lambda: columns.of(None, None)) as write:
        with blaming(job), reading(data):
            for part in predictions(loaded, data, columns, state):
                write(part)
                rows += part.num_rows
                tick(rows)
    seconds = time.perf_counter() - started
    tell_of_servers(loaded)
    if as_json:
        say_json(rows=rows, seconds=seconds, rows_per_second=rows / seconds, output=output, run=str(run), data=data)
    if not loaded.plan.log.key:
        tell(
            f"warning: view {loaded.plan.log.name!r} has no key, so the output has only the column 'probability', in "
            "the order of the log. If the plan's filters drop rows, the predictions cannot be matched with the rows "
            "of the log. "
            'To get an id beside each probability, declare the key of the log and train again: cb.View(…, key="id")'
        )
    where = "" if output == "-" else f" to {output}"
    tell(f"predicted {rows:,} rows in {seconds:.2f} s ({rows / max(seconds, 1e-9):,.0f} rows/s){where}")
    hint(f"ctrbox report {shlex.quote(str(run))}")


def predictions(
    run: Any, data: str, columns: Columns | None = None, state: Path | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the key columns and the probability, in the order of the log; without a key, only the probability."""
    import pyarrow as pa

    from ctrbox.plan.language.expressions import col

    columns = columns or Columns(run)
    names = run.plan.log.key
    if not names:
        for p in run.predictions(data, histories=state):
            yield columns.of(None, p)
        return
    # With the state: a filter may read a history.
    keys = run.plan.over(data, label=False, histories=state).columns({name: col(name) for name in names})
    waiting: pa.Table | None = None
    try:
        for p in run.predictions(data, histories=state):
            while waiting is None or waiting.num_rows < len(p):
                more = next(keys)
                waiting = more if waiting is None else pa.concat_tables([waiting, more])
            yield columns.of(waiting.slice(0, len(p)), p)
            waiting = waiting.slice(len(p))
    finally:
        keys.close()


def expression(run: Any, score: str) -> ScoreExpression:
    """Return the expression that was typed for --score, checked against the labels of the run."""
    from ctrbox.predict.score_expression import ScoreExpression

    try:
        return ScoreExpression.of(score, [task.name for task in run.plan.schema.tasks])
    except DataError as error:
        raise Mistake(f"--score: {error}") from None


class Columns:
    """Columns of the predictions of a run: the key columns of the log, and a column for each label or the probability."""

    def __init__(self, run: Any, score: ScoreExpression | None = None) -> None:
        self.run, self.score = run, score
        self.labels = [task.name for task in run.plan.schema.tasks]
        for name in [*(self.labels or ["probability"]), *(["score"] if score is not None else [])]:
            if name in run.plan.log.key:
                what, other = (
                    ("label", ", or the label in the job,") if name in self.labels else (f"column of the {name}", "")
                )
                raise Mistake(
                    f"key column {name!r} of the log has the same name as a {what}, and both would be columns of the "
                    f"predictions; rename the key column{other} and train again"
                )
        if score is not None and "score" in self.labels:
            raise Mistake(
                "--score writes a column named 'score', but the run has a label with this name; remove --score, or "
                "rename the label in the job and train again"
            )

    def of(self, keys: pa.Table | None, p: np.ndarray | None) -> pa.RecordBatch:
        """Return one part of the predictions or, without ``p``, their columns without rows."""
        import pyarrow as pa

        from ctrbox.columns.one_array import one_array

        columns = {} if keys is None else {name: one_array(name, keys.column(name)) for name in keys.column_names}
        if p is None:
            types = {name: self.run.plan.log.source.schema.field(name).type for name in self.run.plan.log.key}
            columns = {name: pa.array([], kind) for name, kind in types.items()}
        found: dict[str, Any] = {"probability": [] if p is None else p}
        if self.labels:
            found = {name: [] if p is None else p[:, k] for k, name in enumerate(self.labels)}
        if self.score is not None:
            found["score"] = [] if p is None else self.score.of_predictions(p)
        return pa.RecordBatch.from_pydict(
            columns | {name: pa.array(each, pa.float64()) for name, each in found.items()}
        )


# ---- export --------------------------------------------------------------------------------------

EXPORT_EXAMPLES = """\b
Examples:
  ctrbox export runs/job -o exported                    network for ONNX Runtime, tables and a description
  ctrbox export runs/job -o exported --format torch     a package for torch.export.load
"""


def export(
    run: RunFolder,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="New folder for the export.", show_default=False)
    ],
    format: Annotated[
        str, typer.Option(metavar="onnx|torch", help="Format of the network: ONNX, or a package of torch.export.")
    ] = "onnx",
    view: OtherViews = None,
    allow_views: AllowViews = None,
    job: OwnJob = None,
    ram: Ram = None,
    as_json: AsJson = False,
) -> None:
    """Export a trained model for other programs.

    The command writes four parts to a new folder: the network, the rows of the tables, a description of the inputs
    of the network, and reader.py, a Python module that loads these files and scores rows without CTRBox. The scores
    of reader.py equal those of `ctrbox predict` up to rounding.
    """
    loaded = load_run(run, job, view=view, allow_views=allow_views, ram=ram)
    started = time.perf_counter()
    with blaming(job):
        place = loaded.export(output, format)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in place.iterdir())
    if as_json:
        say_json(run=str(run), output=str(place), format=format, bytes=size, seconds=seconds)
    else:
        say(place)
    tell(
        f"exported {size:,} bytes to {place} in {seconds:.1f} s; the module reader.py in that folder computes predictions from it"
    )


# ---- trial ---------------------------------------------------------------------------------------

TRIAL_EXAMPLES = """\b
Examples:
  ctrbox trial job.py --add "city_x_ad=cross('city', 'ad_id')"
  ctrbox trial job.py --add "tags=col('tags').split('|')" --add "h=col('ts').hour()" --limit 200000
"""


TRIAL_SETTINGS = ("valid", "batch_size", "epochs", "limit", "shuffle", "negatives", "clip", "seed", "schedule")
NOT_IN_TRIALS = ("l2", "adaptive_l2", "average")  # settings that decide the weights, but that a trial does not have


def trial(
    job: JobFile,
    add: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=EXPR",
            help="Feature to add to the job's model, as a name and an expression; may be repeated. Each feature is tried "
            "alone unless --together is given.",
        ),
    ],
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of seeds; the model is trained with and without the feature once per seed."
        ),
    ] = 3,
    together: Annotated[
        bool, typer.Option("--together", help="Add all features together, instead of trying each feature alone.")
    ] = False,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Binary label whose predictions are compared; required if the job has several labels. Default: the only "
            "label of the job.",
        ),
    ] = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    limit: Limit = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a new feature adds to a job's model.

    The command trains the model with and without the feature, on the same rows and with the same seeds. It prints
    how much the feature changes the validation metrics, and how much time the feature costs.
    """
    from ctrbox.plan.language.feature_text import parse_features

    wanted = parse_features(add)
    loaded = load_seeded(job, 0)
    model = loaded.needed_model()
    from ctrbox.train.feature_trial import trial as try_out

    asked = {"epochs": epochs, "batch_size": batch_size, "limit": limit}
    # A trial trains all sides equally long and keeps no run folder.
    usual = {k: v for k, v in loaded.settings.items() if k in TRIAL_SETTINGS}
    settings = {**usual, **{name: value for name, value in asked.items() if value is not None}}
    if lost := [f"{name}=" for name in NOT_IN_TRIALS if loaded.settings.get(name)]:
        tell(f"trials do not support {' and '.join(lost)} of the job, so their models are trained without")
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
                label=label,
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
    """Write the report.html of a run again and print its path."""
    from ctrbox.report.write_report import write_report

    folder, stored = fetched(run)
    place = str(write_report(folder))
    if stored is not None:
        stored.push()
        place = stored.shown("report.html")
    if as_json:
        say_json(report=place)
    else:
        say(place)
    hint(evaluate_command(folder, shown=str(run)))


# ---- demo ----------------------------------------------------------------------------------------

DEMO_EXAMPLES = """\b
Examples:
  ctrbox demo
  ctrbox demo --rows 200000 --out /tmp/demo     faster, but further from the best possible AUC
"""


def demo(
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Number of impressions to generate.")] = 2_000_000,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the data, the job file and the run.")] = Path(
        "ctrbox-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Generate an ad log, train a model on it, and write a report.

    The demonstration writes a synthetic ad log and a job file, trains the job's model, evaluates it and writes a report. It
    needs no data of your own and no network.
    """
    started = time.perf_counter()
    generate(rows, 1, out / "data")
    tell(f"generated {rows:,} impressions in {time.perf_counter() - started:.1f} s: {out / 'data'}")

    path = out / "job.py"
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != demo_job():
        raise Mistake(f"{path} already exists and was not written by the demo; choose another --out, or move the file")
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
