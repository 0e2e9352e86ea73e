"""Defines ``ctrbox tune``, which searches the settings of a job with Optuna and stops bad trials early."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ctrbox.cli.job_file import blaming
from ctrbox.cli.options import AsJson, in_words_of_options
from ctrbox.cli.terminal import Mistake, hint, say, say_json, tell, utf8
from ctrbox.cli.train import JobFile, Limit, Threads, Watch, load_seeded

TUNE_EXAMPLES = """\b
Examples:
  ctrbox tune job.py --trials 20 --limit 100000
  ctrbox tune job.py --trials 20                    add 20 trials to the same study
  ctrbox train job.py --tuned tune/job              train with the best parameters
"""


def tune(
    job: JobFile,
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Number of trials to add to the study.")] = 20,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the study. Default: tune/<job>."),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Validation metric by which trials are compared: logloss, auc, gauc or rig; for a job with several labels: "
            "loss, or a metric of one label, such as click.auc.",
        ),
    ] = "logloss",
    epochs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Number of epochs per trial. Default: the job's setting, otherwise 1."),
    ] = None,
    limit: Limit = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="Number of steps between evaluations; a bad trial can be stopped at each evaluation. Default: the job's "
            "setting, otherwise once per epoch.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="SEED", min=0, max=2**31, help="Seed of the search and of the initial weights.")
    ] = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Search for the best settings of a job with Optuna.

    The job file declares the settings and their ranges in a function `def tune(trial)`. The command trains the
    model once for each trial, and stops trials with bad results early.
    """
    loaded = load_seeded(job, seed)
    folder = Path("tune") / job.stem if out is None else utf8(out)
    from ctrbox.train.tuning import Study, check_metric, space_of

    space = space_of(loaded.tune, job)
    asked: dict[str, Any] = {"epochs": epochs, "limit": limit, "evaluate_every": evaluate_every}
    settings = {**loaded.settings, "seed": seed, **{name: value for name, value in asked.items() if value is not None}}
    check_metric(metric, loaded.plan)
    study = Study(folder, metric, seed)
    before = len(study.study.get_trials(deepcopy=False))
    if before:
        tell(f"{folder} holds {before:,} trials; {trials:,} are added")
    if settings.get("evaluate_every") is None and settings.get("epochs", 1) == 1:
        tell(
            "a trial of one epoch is evaluated only once, so it cannot be stopped early; add --evaluate-every STEPS to evaluate "
            "more often"
        )
    watch = Watch(quiet=True)
    try:
        with blaming(job), in_words_of_options():
            study.run(
                space,
                loaded.plan,
                model=loaded.model,
                table=loaded.table,
                optimizer=loaded.optimizer,
                settings=settings,
                trials=trials,
                threads=threads,
                bf16=loaded.bf16,
                common=loaded.common,
                watch=lambda: watch,
                tell=tell,
            )
    finally:
        watch.end()
    shown = study.study.get_trials(deepcopy=False)
    done = study.done
    if not done:
        first = next((t.user_attrs["failed"] for t in shown if "failed" in t.user_attrs), "all were stopped early")
        raise Mistake(f"none of the {len(shown):,} trials in {folder} was completed: {first}")
    best = done[0]
    if as_json:
        found = [
            {"number": t.number, "state": t.state.name.lower(), "value": t.value, "params": t.params} for t in shown
        ]
        say_json(study=str(folder), metric=metric, best=best.params, value=best.value, trials=found)
    else:
        for trial in [*done, *(t for t in shown if t.value is None or t not in done)]:
            say(study.line(trial.number))
    tell(
        f"best: trial {best.number}, {metric} {best.value:.5f}, of {len(done):,} completed trials ({len(shown):,} in all)"
    )
    for name, value in best.params.items():
        tell(f"  {name} = {value!r}")
    hint(f"ctrbox train {shlex.quote(str(job))} --tuned {shlex.quote(str(folder))}")
