"""Loads a job file: the user's Python file that defines ``plan`` and, for training, ``model`` and ``table``.

An error inside the file is shown with the file, the line and the message, never as a traceback of CTRBox.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from ctrbox.arguments.names import closest
from ctrbox.cli.terminal import Mistake, Stopped, tell
from ctrbox.errors import CtrboxError, PlanError

FROM_THE_COMMAND_LINE = frozenset(["out", "resume", "overwrite", "progress"])
OF_THE_JOB = frozenset(["callbacks"])
READ = (
    "plan",
    "model",
    "table",
    "optimizer",
    "settings",
    "bf16",
    "engine",
    "context",
    "callbacks",
    "tune",
    "encoders",
    "common",
)
ALIKE = (
    0.8  # similarity of two names, 0 to 1: `optimizer` and `tables` are at least as like, `label` and `table` are not
)


@dataclass(frozen=True)
class Job:
    """The objects that a job file defines. `model`, `table`, `optimizer` and `engine` are None if the file does not define them.
    `settings` are arguments of ``Trainer.fit``; `context` has the columns that a request contains once."""

    path: Path
    plan: Any
    model: Any = None
    table: Any = None
    optimizer: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    bf16: bool = False  # products of the dense part in bfloat16, on a GPU
    engine: Any = None
    context: tuple[str, ...] = ()
    callbacks: tuple[Any, ...] = ()  # of its training
    tuned: Path | None = None  # folder of the study whose best trial this is
    tune: Any = None  # a function from a trial of Optuna to what that trial trains, for `ctrbox tune`
    common: tuple[str, ...] = ()  # fields that the rows of one group share; an argument of the trainer
    encoders: dict[str, Any] = field(
        default_factory=dict
    )  # by field, of images and texts in requests, for `ctrbox serve`

    def needed_engine(self) -> Any:
        """Return the Deep FFM for a command that learns online. Raise a `Mistake` if the job does not define it."""
        from ctrbox.ffm.engine import DeepFFM

        if not isinstance(self.engine, DeepFFM):
            met = "defines no `engine`" if self.engine is None else f"has a {type(self.engine).__name__} as `engine`"
            raise Mistake(f"{self.path} {met}; add: engine = cb.DeepFFM(plan.schema)")
        return self.engine

    def needed_model(self) -> Any:
        """Return the model for a command that needs one. Raise a `Mistake` if the job does not define it."""
        if self.model is None:
            raise Mistake(f"{self.path} defines no `model`; add: model = cb.models.DeepFM(plan.schema)")
        if isinstance(self.model, type):
            name = self.model.__name__
            raise Mistake(
                f"`model` in {self.path} is the class {name}; expected an instance of it: {name}(plan.schema)"
            )
        if not hasattr(self.model, "reads") or not callable(self.model):
            raise Mistake(
                f"`model` in {self.path} is a {type(self.model).__name__}; "
                "expected a torch module with `reads`, such as cb.models.DeepFM(plan.schema)"
            )
        return self.model


def files_there(path: Path) -> str:
    """Return the end of an error about a missing file: the Python file with the most similar name, and others in its folder."""
    if not path.parent.is_dir():
        return f", because there is no folder {path.parent}"
    names = sorted(p.name for p in path.parent.glob("*.py"))
    if not names:
        where = "the current folder" if path.parent == Path() else str(path.parent)
        return f"; there is no Python file in {where}"
    alike = closest(path.name, names)
    others = [name for name in names if name != alike]
    shown = ", ".join(others[:5]) + (f" and {len(others) - 5:,} more" if len(others) > 5 else "")
    return (f"; nearest: {path.parent / alike}" if alike else "") + (f"; the folder has: {shown}" if others else "")


def load_job(path: Path) -> Job:
    """Run the user's file and return what it defines. Its folder is importable, as for any script."""
    if path.is_dir():
        raise Mistake(f"{path} is a folder; expected a job file, such as job.py, that defines `plan`")
    if not path.is_file():
        raise Mistake(f"there is no job file {path}{files_there(path)}")
    from ctrbox.views.formats import EXTENSIONS

    if path.suffix[1:].lower() in {e for several in EXTENSIONS.values() for e in several}:
        raise Mistake(
            f"{path} "
            f"is a data file; expected a job file, such as job.py, that reads it with cb.View({str(path)!r}, "
            f"key=…) and defines `plan`"
        )
    names = names_of(path, "`plan`")
    alike = misspelled(names)
    if "plan" not in names:
        raise Mistake(
            f"{path} defines no `plan`; end it with: plan = cb.compile(log, features)"
            + "".join(f". It defines `{name}`; rename it to `plan`" for name, known in alike.items() if known == "plan")
        )
    for name, known in alike.items():
        tell(
            f"ctrbox: warning: {path} defines `{name}`, which ctrbox does not read; if it is meant as `{known}`, rename it"
        )
    plan = names["plan"]
    if not hasattr(plan, "batches"):
        raise Mistake(f"`plan` in {path} is a {type(plan).__name__}; expected a plan, as cb.compile returns it")
    settings = names.get("settings", {})
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise Mistake(f"`settings` in {path} must be a dict of arguments of Trainer.fit, got {settings!r}")
    for name in FROM_THE_COMMAND_LINE & settings.keys():
        raise Mistake(
            f"`settings` in {path} has {name!r}, which only an option of the command line can set; remove it from `settings`"
        )
    for name in OF_THE_JOB & settings.keys():
        raise Mistake(f"`settings` in {path} has {name!r}; define it as a variable of its own instead: {name} = […]")
    context = names.get("context", ())
    columns = not isinstance(context, str) and all(isinstance(n, str) for n in listed(context))
    if "engine" in names and not columns:
        raise Mistake(f"`context` in {path} must be a list of the log's columns, got {context!r}")
    return Job(
        path,
        plan,
        names.get("model"),
        names.get("table"),
        names.get("optimizer"),
        settings,
        names.get("bf16", False),
        names.get("engine"),
        tuple(listed(context)) if columns and ("engine" in names or "model" in names) else (),
        callbacks=callbacks_of(names.get("callbacks", []), path),
        tune=names.get("tune"),
        common=common_of(names.get("common", ()), path),
        encoders=encoders_of(names.get("encoders", {}), path),
    )


def names_of(path: Path, wanted: str) -> dict[str, Any]:
    """Run the user's file and return the names that it defines. ``wanted``: what it should define, for messages."""
    sys.path.insert(0, str(path.parent.resolve()))
    sys.argv = [str(path)]
    try:
        # What a job prints goes to stderr, because stdout is for data.
        with contextlib.redirect_stdout(sys.stderr):
            return runpy.run_path(str(path), run_name="ctrbox_job")
    except (KeyboardInterrupt, Stopped):
        raise
    except SystemExit as end:
        raise Mistake(f"{path} called exit (exit code {end.code}) before it defined {wanted}") from end
    except BaseException as error:
        raise_mistake(error, path)


def load_encoder(path: Path) -> Any:
    """Run the user's file and return the `encoder` that it defines."""
    from ctrbox.embed.vectors.encoders import Encoder

    if not path.is_file():
        raise Mistake(f"there is no file {path}{files_there(path)}")
    found = names_of(path, "`encoder`").get("encoder")
    if not isinstance(found, Encoder):
        met = "defines no `encoder`" if found is None else f"has a {type(found).__name__} as `encoder`"
        raise Mistake(f"{path} {met}; expected a cb.tables.Encoder: encoder = cb.tables.Encoder(module, prepare)")
    return found


def misspelled(names: Mapping[str, Any]) -> dict[str, str]:
    """Return those names of a job that are not used but resemble a name that is used and not defined, with this name.

    Modules, classes and functions are left out: `models` and `tables` are often imported.
    """
    missing = [name for name in READ if name not in names]
    found = {}
    for name, value in names.items():
        if name.startswith("_") or name in READ or isinstance(value, ModuleType | FunctionType | type):
            continue
        if near := difflib.get_close_matches(name.lower(), missing, n=1, cutoff=ALIKE):
            found[name] = near[0]
    return found


def callbacks_of(found: Any, path: Path) -> tuple[Any, ...]:
    """Check and return the `callbacks` of a job."""
    if not isinstance(found, list | tuple):
        raise Mistake(f"`callbacks` in {path} must be a list of callbacks, got {type(found).__name__}")
    return tuple(found)


def common_of(found: Any, path: Path) -> tuple[str, ...]:
    """Check and return the `common` of a job."""
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        raise Mistake(f"`common` in {path} must be a list of fields of the plan, got {found!r:.200}")
    return tuple(found)


def encoders_of(found: Any, path: Path) -> dict[str, Any]:
    """Check and return the `encoders` of a job."""
    if found == {}:
        return {}
    from ctrbox.embed.vectors.encoders import Encoder

    if not isinstance(found, dict) or not all(isinstance(one, Encoder) for one in found.values()):
        raise Mistake(
            f"`encoders` in {path} must be a dict from fields to encoders, {{FIELD: cb.tables.Encoder(…)}}, got "
            f"{found!r:.200}"
        )
    return found


def listed(value: Any) -> list[Any]:
    """Return the elements of a list, and nothing for any other value: a job may use the name for an expression."""
    return list(value) if isinstance(value, list | tuple) else []


def load_plan(path: Path) -> Any:
    """Return the `plan` of a job, for commands that do not train."""
    return load_job(path).plan


def one_line(told: str) -> str:
    """Return a message as one line. Its indented lines are items of a list; a bar separates them from each other."""
    head, *items = [" ".join(part.split()) for part in re.split(r"\n(?=\s)", told)]
    return " ".join([head, " | ".join(items)]) if items else head


def raise_mistake(error: BaseException, job: Path) -> NoReturn:
    """Turn an error of the user's file into file:line and its message."""
    if os.environ.get("CTRBOX_TRACEBACK"):
        raise error
    if isinstance(error, SyntaxError) and error.lineno is not None:
        where = job if _same_file(error.filename, job) else error.filename
        raise Mistake(f"{where}:{error.lineno}: {type(error).__name__}: {error.msg}") from error
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if _same_file(f.filename, job)]
    if isinstance(error, PlanError) and error.written_at is not None and _same_file(error.written_at[0], job):
        lines.append(error.written_at[1])  # the line of the expression, not that of compile()
    where = f"{job}:{lines[-1]}" if lines else str(job)
    told = one_line(str(error))
    if isinstance(error, CtrboxError | Mistake):
        raise Mistake(f"{where}: {told}") from error
    raise Mistake(f"{where}: {type(error).__name__}: {told}") from error


def batches(plan: Any, job: Path, rows: int, limit: int | None = None) -> Iterator[Any]:
    """Yield the batches of a plan. An error in a user's operator names the line in the user's file."""
    with blaming(job):
        try:
            yield from plan.batches(rows, limit=limit)
        except OSError as error:
            raise Mistake(f"cannot read: {error}") from error


@contextlib.contextmanager
def blaming(job: Path | None) -> Iterator[None]:
    """Turn an error in the user's file, such as in an operator or a model, into an error that names the line."""
    try:
        yield
    except (CtrboxError, Mistake):
        raise
    except Exception as error:
        if job is not None and any(_same_file(f.filename, job) for f in traceback.extract_tb(error.__traceback__)):
            raise_mistake(error, job)
        raise


def _same_file(name: str | None, job: Path) -> bool:
    return name is not None and Path(name).resolve() == job.resolve()
