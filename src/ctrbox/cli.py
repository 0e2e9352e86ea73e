"""The command line: verbs over a job, which is a Python file that defines `plan`.

Data goes to stdout, everything else to stderr. Exit codes: 0 done; 1 a mistake in the job, the data or the
disk, told in one line; 2 a wrong command line; 130 Ctrl-C; 143 SIGTERM. `CTRBOX_TRACEBACK=1` shows the
traceback behind a one-line error.

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
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))

import contextlib
import json
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ctrbox.errors import CtrboxError

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLES = """\b
Examples:
  ctrbox demo                              a first look: ad log, plan, rows per second
  ctrbox extract job.py --count            how fast is this job
  ctrbox extract job.py -o day.parquet     features of a job as a file
  ctrbox explain job.py --device cuda:32GB
"""

app = typer.Typer(
    help="From raw ad logs to training batches, in one program.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
datasets_app = typer.Typer(help="Make data to try things on.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(datasets_app, name="datasets")

Job = Annotated[Path, typer.Argument(metavar="JOB.PY", help="Python file that defines `plan`.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]


class Mistake(Exception):
    """Something the user can put right; shown as one line."""


# ---- verbs ---------------------------------------------------------------------------------------


@app.command(
    epilog="""\b
Examples:
  ctrbox extract job.py --count
  ctrbox extract job.py -o features.parquet
  ctrbox extract job.py --limit 1000 -o - | python read_arrow_stream.py
"""
)
def extract(
    job: Job,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="*.parquet, *.arrow, or - for an Arrow stream on stdout."),
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Extract, keep nothing, print the number of rows.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, metavar="ROWS", help="Stop after this many rows.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="ROWS", help="Rows of a batch.")] = 65_536,
    threads: Annotated[int | None, typer.Option(min=1, help="Worker threads; all cores unless told.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a job: raw rows in, features out."""
    if count == (output is not None):
        raise Mistake(f"extract needs one of -o FILE and --count; try: ctrbox extract {job} --count")
    if output == "-" and as_json:
        raise Mistake("-o - and --json both want stdout; drop one of them")
    if output == "-" and sys.stdout.isatty():
        raise Mistake("an Arrow stream is no use on a terminal; pipe it, or name a file: -o features.parquet")
    if output not in (None, "-") and Path(str(output)).suffix not in (".parquet", ".arrow"):
        raise Mistake(f"-o {output}: the name must end in .parquet or .arrow, or be - for stdout")

    plan = load_plan(job)
    if threads is not None:
        plan.threads = threads
    started = time.perf_counter()
    with meter("extracting") as tick, sink(output, plan) as write:
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
            output=output,
        )
    elif count:
        say(rows)
    report(plan, rows, seconds, "" if output in (None, "-") else f" to {output}")
    hint(f"ctrbox explain {job}" if output in (None, "-") else f"ctrbox show {job} -o plan.svg")


@app.command(
    epilog="""\b
Examples:
  ctrbox explain job.py
  ctrbox explain job.py --device cuda:32GB      placement on a GPU this machine need not have
"""
)
def explain(
    job: Job,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Place for this device: cpu, cuda or cuda:32GB.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say in words what a plan does: layers, placement, reasons, rows and bytes."""
    plan = load_plan(job)
    if as_json:
        from ctrbox.plan.explain import explain_json

        say_json(**explain_json(plan.graph, device or plan.device))
    else:
        say(plan.explain(device))
    hint(f"ctrbox show {job} -o plan.svg")


@app.command(
    epilog="""\b
Examples:
  ctrbox show job.py -o plan.svg
"""
)
def show(
    job: Job,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The drawing.")] = Path("plan.svg"),
) -> None:
    """Draw a plan: operators by layer, hoisted ones below their join."""
    plan = load_plan(job)
    with written_aside(output) as aside:
        plan.show(str(aside))
    tell(f"wrote {output}")
    hint(f"ctrbox extract {job} --count")


@datasets_app.command("adlog")
def datasets_adlog(
    rows: Annotated[int, typer.Option(min=1, help="Impressions.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same log.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder that gets one folder per view.")] = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Generate the synthetic ad log: impressions, users, ads, basic features."""
    started = time.perf_counter()
    generate(rows, seed, out)
    seconds = time.perf_counter() - started
    if as_json:
        say_json(rows=rows, seed=seed, out=str(out), seconds=seconds)
    else:
        say(out)
    tell(f"{rows:,} impressions in {seconds:.1f} s under {out}")
    hint("ctrbox demo")


@datasets_app.command("list")
def datasets_list(as_json: AsJson = False) -> None:
    """List what there is."""
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


@app.command(
    epilog="""\b
Examples:
  ctrbox demo
  ctrbox demo --rows 1000000 --out /tmp/demo
"""
)
def demo(
    rows: Annotated[int, typer.Option(min=1, help="Impressions to generate.")] = 200_000,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where data, job and drawing go.")] = Path("ctrbox-demo"),
    as_json: AsJson = False,
) -> None:
    """Generate an ad log, extract features from it, print rows per second by stage, draw the plan."""
    started = time.perf_counter()
    generate(rows, 1, out / "data")
    tell(f"generated {rows:,} impressions in {time.perf_counter() - started:.1f} s: {out / 'data'}")

    job = out / "job.py"
    with written_aside(job) as aside:
        aside.write_text(DEMO_JOB, encoding="utf-8")
    started = time.perf_counter()
    plan = load_plan(job)
    tell(f"compiled {job} in {time.perf_counter() - started:.2f} s")

    started = time.perf_counter()
    extracted = 0
    with meter("extracting") as tick:
        for batch in batches(plan, job, 65_536):
            extracted += batch.rows
            tick(extracted)
    seconds = time.perf_counter() - started
    drawing = out / "plan.svg"
    with written_aside(drawing) as aside:
        plan.show(str(aside))

    if as_json:
        say_json(
            rows=extracted,
            seconds=seconds,
            rows_per_second=extracted / seconds,
            stages=dict(plan.stats),
            warnings=dict(plan.warnings),
            drawing=str(drawing),
        )
    report(plan, extracted, seconds, "")
    tell(f"the plan as a drawing: {drawing}")
    hint(f"ctrbox explain {job}")


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    from ctrbox import __version__

    if as_json:
        say_json(ctrbox=__version__, python=sys.version.split()[0])
    else:
        say(f"ctrbox {__version__}")


# ---- the job -------------------------------------------------------------------------------------


def load_plan(job: Path) -> Any:
    """Run the user's file and return its `plan`. Its folder is importable, as for any script."""
    if not job.is_file():
        near = sorted(p.name for p in job.parent.glob("*.py"))[:5] if job.parent.is_dir() else []
        raise Mistake(f"there is no job file {job}" + (f"; here are: {', '.join(near)}" if near else ""))
    sys.path.insert(0, str(job.parent.resolve()))
    sys.argv = [str(job)]
    try:
        names = runpy.run_path(str(job), run_name="ctrbox_job")
    except (KeyboardInterrupt, Stopped):
        raise
    except SystemExit as end:
        raise Mistake(f"{job} ended by itself (exit code {end.code}) before it defined `plan`") from end
    except BaseException as error:
        raise_mistake(error, job)
    if "plan" not in names:
        raise Mistake(f"{job} defines no `plan`; end it with: plan = cb.compile(log, features)")
    plan = names["plan"]
    if not hasattr(plan, "batches"):
        raise Mistake(f"`plan` in {job} is a {type(plan).__name__}; expected what cb.compile returns")
    return plan


def raise_mistake(error: BaseException, job: Path) -> NoReturn:
    """Turn an error of the user's file into file:line and its message."""
    if os.environ.get("CTRBOX_TRACEBACK"):
        raise error
    if isinstance(error, SyntaxError) and error.lineno is not None:
        where = job if _same_file(error.filename, job) else error.filename
        raise Mistake(f"{where}:{error.lineno}: {type(error).__name__}: {error.msg}") from error
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if _same_file(f.filename, job)]
    where = f"{job}:{lines[-1]}" if lines else str(job)
    if isinstance(error, CtrboxError | Mistake):
        raise Mistake(f"{where}: {error}") from error
    raise Mistake(f"{where}: {type(error).__name__}: {error}") from error


def batches(plan: Any, job: Path, rows: int, limit: int | None = None) -> Iterator[Any]:
    """The plan's batches; what goes wrong inside a user's operator points at the user's line."""
    try:
        yield from plan.batches(rows, limit=limit)
    except CtrboxError:
        raise
    except OSError as error:
        raise Mistake(f"cannot read: {error}") from error
    except Exception as error:
        if any(_same_file(f.filename, job) for f in traceback.extract_tb(error.__traceback__)):
            raise_mistake(error, job)
        raise


def _same_file(name: str | None, job: Path) -> bool:
    return name is not None and Path(name).resolve() == job.resolve()


# ---- writing -------------------------------------------------------------------------------------


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    from ctrbox.engines import aside

    with aside.written_aside(path) as beside:
        yield beside


@contextlib.contextmanager
def sink(output: str | None, plan: Any) -> Iterator[Callable[[Any], None]]:
    """`write(batch)` for a Parquet file, an Arrow file, an Arrow stream on stdout, or nothing."""
    if output is None:
        yield lambda batch: None
        return

    writer: Any = None

    with contextlib.ExitStack() as stack:
        target: Any = sys.stdout.buffer
        if output != "-":
            target = str(stack.enter_context(written_aside(Path(output))))

        def open_writer(schema: pa.Schema) -> Any:
            # The first batch brings the schema; until then there is nothing to open.
            if output != "-" and output.endswith(".parquet"):
                import pyarrow.parquet as pq

                return pq.ParquetWriter(target, schema, compression="zstd", write_page_checksum=True)
            import pyarrow.ipc as ipc

            return ipc.new_stream(target, schema) if output == "-" else ipc.new_file(target, schema)

        def write(batch: Any) -> None:
            nonlocal writer
            columns = batch.to_arrow()
            if writer is None:
                writer = open_writer(columns.schema)
            writer.write_batch(columns)

        try:
            yield write
            if writer is None:
                # No row passed the filters: the file has the right columns all the same.
                write(no_rows(plan.schema))
        except OSError as error:
            if output != "-" or isinstance(error, CtrboxError):
                raise
            raise Mistake(f"cannot write to stdout ({error.strerror or error})") from error
        finally:
            # Closing after a failure can fail again, with a less useful message.
            with contextlib.suppress(Exception) if sys.exc_info()[0] else contextlib.nullcontext():
                if writer is not None:
                    writer.close()


def no_rows(schema: Any) -> Any:
    import numpy as np

    from ctrbox.columns.batch import Batch, Ragged

    def none(present: bool, dtype: Any) -> Any:
        return np.zeros(0, dtype) if present else None

    empty = Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64))
    return Batch(
        schema=schema,
        rows=0,
        label=none(schema.label, np.float32),
        dense=np.zeros((0, schema.dense_width), np.float32),
        sparse={field.name: empty for field in schema.sparse},
        group=none(schema.group, np.int64),
        weight=none(schema.weight, np.float32),
    )


# ---- talking -------------------------------------------------------------------------------------


def say(text: object) -> None:
    """Data, to stdout."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise Mistake(f"cannot write to stdout ({error.strerror})") from error


def tell(line: str) -> None:
    """Words about it, to stderr; where they cannot be written the work goes on."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        silence(2)


def hint(command: str) -> None:
    tell(f"next: {command}")


def say_json(**fields: Any) -> None:
    say(json.dumps(fields, default=str))


def report(plan: Any, rows: int, seconds: float, where: str) -> None:
    """Rows per second, by stage where the plan knows, and what was counted as odd."""
    tell(f"extracted {rows:,} rows in {seconds:.2f} s ({rows / max(seconds, 1e-9):,.0f} rows/s){where}")
    for stage, spent in plan.stats.items():
        stage_rows, stage_seconds = int(spent.get("rows", 0)), float(spent.get("seconds", 0.0))
        rate = f"{stage_rows / stage_seconds:>14,.0f} rows/s" if stage_seconds > 0 else ""
        tell(f"  {stage:<24}{stage_rows:>12,} rows {stage_seconds:>9.3f} s{rate}")
    for what, times in plan.warnings.items():
        if times:
            tell(f"  warning: {what}: {times:,} rows")


@contextlib.contextmanager
def meter(what: str) -> Iterator[Callable[[int], None]]:
    """`tick(done)` moves a progress line, where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    started = time.perf_counter()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what)

        def tick(done: int) -> None:
            rate = done / max(time.perf_counter() - started, 1e-9)
            progress.update(task, description=f"{what} {done:,} rows, {rate:,.0f} rows/s")

        yield tick


def generate(rows: int, seed: int, out: Path) -> None:
    from ctrbox.datasets import adlog

    with meter("generating") as tick:
        adlog(rows=rows, seed=seed, out=out, progress=lambda done, total: tick(done))


# ---- the door ------------------------------------------------------------------------------------


class Stopped(SystemExit):
    """A polite kill unwinds like Ctrl-C, so that files written aside are removed."""


signals: list[int] = []  # those that came to stop the process


def stop(number: int, frame: Any) -> NoReturn:
    signals.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Stopped(128 + number)


def main() -> NoReturn:
    open_streams()
    code = 0
    try:
        signal.signal(signal.SIGTERM, stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, stop)
        typer.main.get_command(app).main(prog_name="ctrbox")
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except Exception as error:
        code = 1
        if not signals:  # else it is what became of the interrupt in somebody's code
            if os.environ.get("CTRBOX_TRACEBACK") or not isinstance(error, CtrboxError | Mistake | OSError):
                raise
            tell(f"ctrbox: error: {error}")
    if signals and code:
        code = 128 + signals[-1]
    if code == 130:
        tell("ctrbox: stopped; nothing unfinished was kept")
    try:
        sys.stdout.flush()
    except OSError as error:
        silence(1)
        if not code:
            tell(f"ctrbox: error: cannot write to stdout ({error.strerror})")
            code = 1
    sys.exit(code)


def open_streams() -> None:
    """Where a stream is closed (`2>&-`), the next file opened would take its number, and print would fail."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # What is read is empty; writing fails on stdout, as on any that is not there, and is lost on stderr.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def silence(number: int) -> None:
    """Let what a broken stream still holds go nowhere; the interpreter would fail on it at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


DEMO_JOB = '''\
"""The demo's job: an ad log to the features of a click model."""

from pathlib import Path

import ctrbox as cb
from ctrbox import col

data = Path(__file__).parent / "data"

impressions = cb.View(f"{data}/impressions", key="instance_id").fill(query="", device="unknown")
users = cb.View(f"{data}/users", key="user_id").fill(age=0, gender="unknown", history="")
ads = cb.View(f"{data}/ads", key="ad_id").fill(bid=0.0, advertiser_id=0, title="")
basic = cb.View(f"{data}/basic", key="instance_id")

log = (
    impressions.with_columns(city=col("context").json("$.geo.city").fill("none"))
    .filter(col("device").is_in(["ios", "android"]))
    .join(users, on="user_id")
    .join(ads, on="ad_id")
    .merge(basic)
)

features = cb.FeatureSet(
    label=col("clicked"),
    group=col("user_id"),
    sparse={
        "user": col("user_id").key(),
        "ad": col("ad_id").key(),
        "city": col("city").key(),
        "gender": col("gender").key(),
        "query": col("query").lower().split(" ").key(),
        "title": col("title").lower().split(" ").key(),
        "user_x_ad": cb.cross("user_id", "ad_id"),
        "hour_x_adv": cb.cross(col("ts").hour(), "advertiser_id"),
        "history": col("history").split("|").last(20).key(),
    },
    dense={
        "age": col("age"),
        "log_bid": col("bid").log1p(),
        "overlap": cb.overlap(col("query").split(" "), col("title").split(" ")),
    },
)

plan = cb.compile(log, features)
'''

if LOADING:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    main()
