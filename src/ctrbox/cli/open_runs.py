"""Opens run folders and saved plans for the commands that read them, and defines the options that they share.

A run names paths and classes. A path is opened only if it is below the current folder or beside the run, or if the user
names it (--view, --allow-views). Code is imported only by the job that the user names (--job). Of the operators that a
run names, only those are used that the plan of this job uses as well.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ctrbox.cli.job_file import Job, load_job, load_plan
from ctrbox.cli.options import in_words_of_options, pairs_of, vector_files
from ctrbox.cli.terminal import Mistake, tell
from ctrbox.errors import CtrboxError, PlanError

RunFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run folder of a finished training: a local path, s3://bucket/folder or hdfs://host/folder.",
    ),
]
OwnJob = Annotated[
    Path | None,
    typer.Option(
        "--job",
        metavar="JOB.PY",
        help="Job file that trained the run; needed if the class of the model, or an operator, is your own code. The "
        "command executes this file.",
    ),
]
OtherViews = Annotated[
    list[str] | None,
    typer.Option(
        "--view",
        metavar="NAME=PATH",
        help="Read the view NAME of the plan from PATH instead of the saved path; may be repeated. Default: the saved "
        "path of each view.",
    ),
]
AllowViews = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-views",
        metavar="PATH",
        help="Path below which the run may open views, such as /data or s3://bucket/; may be repeated. Without this "
        "option, the run may open only views below the current folder, or below the folder that contains the run folder. "
        "This restriction protects you from a run made by somebody else, which could name any path. If the run folder is "
        "in a folder named runs, the folder that contains runs counts instead: for /data/runs/job, this is /data. The "
        "environment variable CTRBOX_ALLOW_VIEWS (comma-separated paths) has the same effect.",
    ),
]
HistoryState = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="File that `plan.histories().save(path)` wrote. It contains the state of the histories, that is, the events "
        "from before the first row of the log, which the histories then include. Default: no file; the histories "
        "are empty at the first row of the log.",
    ),
]
Ram = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for all Sparse Tables of the run together, such as 500MB; each table gets an equal share. Units are "
        "powers of 1024. Default: 2GB for each table.",
    ),
]


def fetched(folder: str | Path) -> tuple[Path, Any]:
    """Return the local path of a run folder and, if it is on S3 or HDFS, the stored folder from which it was downloaded."""
    from ctrbox.files.urls import url_of

    if url_of(folder) is None and not Path(folder).is_dir():
        near = sorted(str(p.parent) for p in Path("runs").glob("*/config.json"))[:5]
        raise Mistake(f"there is no run folder {folder}" + (f"; this folder has: {', '.join(near)}" if near else ""))
    from ctrbox.predict.read_run_folder import fetched_run

    return fetched_run(folder)


def load_run(
    folder: str | Path,
    job: Path | None = None,
    *,
    view: list[str] | None = None,
    allow_views: list[str] | None = None,
    threads: int | None = None,
    ram: str | None = None,
    server: list[str] | None = None,
) -> Any:
    """Load a finished run. With a job, it uses the model class, the views and the operators of the job."""
    place, stored = fetched(folder)
    own = own_job(job)
    from ctrbox.predict.read_run_folder import servers_of
    from ctrbox.train.run import Run

    files = vector_files(server)
    views = pairs_of("--view", view, "users=tomorrow/users")
    with in_words_of_options(), asking_for_the_job(own):
        servers = servers_of(place, files) if files else {}
        run = Run.load(
            place if stored is None else stored,
            model=None if own is None else own.model,
            plan=plan_of(own, views),
            views=views,
            allow_operators=operators_in(own),
            allow_views=allow_views or (),
            ram=ram,
            servers=servers,
        )
    if threads is not None:
        run.plan, run.learner.threads = run.plan.using(threads=threads), threads
    return run


def plan_at(path: Path, allow_operators: bool = False) -> Any:
    """Return the plan of a job, a run folder, the folder of a served model, or a saved plan. No data is opened."""
    file = path
    if path.is_dir():
        places = [path / "plan.ctrplan", path / "plan.ctr"]
        found = [place for place in places if place.is_file()]
        if not found:
            raise Mistake(
                f"{path} is a folder; expected a job file, such as job.py, the folder of a run or of a served model, or a "
                "saved plan"
            )
        file = found[0]
    elif not is_plan(path):
        return load_plan(path)
    from ctrbox.compiled_plan.plan import Plan

    with in_words_of_options():
        return Plan.load(file, allow_operators=allow_operators)


def is_plan(path: Path) -> bool:
    """Return whether a file begins as saved plans do."""
    try:
        with path.open("rb") as file:
            return file.read(8) == b"CTRBOXPL"
    except OSError:
        return False


def own_job(job: Path | None) -> Job | None:
    return None if job is None else load_job(job)


def plan_of(own: Job | None, views: dict[str, str]) -> Any:
    """Return the plan of a job, whose views are the user's own; None where --view replaces one of them."""
    return None if own is None or views else own.plan


def operators_in(own: Job | None) -> Any:
    """Return the operators that the plan of a job uses, which the job has imported itself; False without a job."""
    if own is None:
        return False
    from ctrbox.compiled_plan.plan_file import operators_of

    return operators_of(own.plan)


@contextlib.contextmanager
def asking_for_the_job(own: Job | None) -> Iterator[None]:
    """Turn an error about a user's model or operator into one that asks for the job that defines it."""
    try:
        yield
    except PlanError as error:
        told = str(error)
        if own is not None and "allow_operators" in told:
            raise Mistake(
                f"{own.path} is not the job of this run: {told.split(', and loading')[0]}, which this job does not define"
            ) from error
        if own is not None or not any(
            word in told for word in ("cb.Run.load(…, model=", "allow_operators", "open(…, model=")
        ):
            raise
        raise Mistake(f"{told.split(';')[0]}; name the job that has it: --job JOB.PY") from error
    except CtrboxError as error:
        if own is None and "open(…, model=" in str(error):
            raise Mistake(f"{str(error).split(';')[0]}; name the job that has it: --job JOB.PY") from error
        if own is not None and "fingerprint" in str(error):
            raise Mistake(f"{own.path} is not the job of this run: {error}") from error
        raise


def tell_of_servers(run: Any) -> None:
    """Warn if a vector file contains none of the requested objects: their vectors are zero, and yet the scores look
    plausible.
    """
    from ctrbox.embed.vectors.model_server import ModelServer

    for source in run.learner.sources:
        if isinstance(source.embedder, ModelServer):
            counts = source.embedder.stats()
            if counts["keys"] and not counts["computed"]:
                tell(
                    f"warning: none of the keys of field {source.fields[0]!r} has a row in "
                    f"{source.embedder.data.path}, so the model used zero vectors for all of them"
                )


def evaluate_command(folder: Path, job: Path | None = None, shown: str | None = None) -> str:
    """Return the command that evaluates a finished run, with what the run needs: a log with labels, its job, its paths.

    ``job``: the job file that trained the run, if it is known. ``shown``: the URL of the run of which ``folder`` is a copy.
    """
    from ctrbox.compiled_plan.plan_file import paths_to_allow
    from ctrbox.files.sealed_json import read_sealed
    from ctrbox.models import EVERY_MODEL

    summary = read_sealed(folder / "summary.json", "finished run")
    held = isinstance(summary.get("held"), Mapping)
    words = ["ctrbox", "evaluate", shown or str(folder), *([] if held else ["DATA"])]
    paths = paths_to_allow(folder / "plan.ctrplan", log=held)
    if paths is None or summary.get("model") not in EVERY_MODEL:
        words += ["--job", "JOB.PY" if job is None else str(job)]  # it has the model, the operators and the views
    else:
        words += [word for path in paths for word in ("--allow-views", path)]
    for server in summary.get("servers", []):
        words += ["--server", f"{server['fields'][0]}={server['data']}"]
    return shlex.join(words)


@contextlib.contextmanager
def reading(data: str | None) -> Iterator[None]:
    """Report errors in reading the data as the command line does.

    Options are named in place of Python arguments, and an OSError becomes a `Mistake` that names the data.
    """
    try:
        with in_words_of_options():
            yield
    except OSError as error:
        if isinstance(error, CtrboxError):
            raise
        raise Mistake(f"cannot read {data or 'the log of the run'}: {error.strerror or error}") from error
