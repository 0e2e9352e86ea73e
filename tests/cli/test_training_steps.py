"""`ctrbox train` without a training: what is asked of the trainer, what is said, and the command that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

import ctrbox as cb
from ctrbox.cli import serve as serving
from ctrbox.cli import table as tables
from ctrbox.cli import terminal
from ctrbox.cli import train as training_command
from ctrbox.cli.job_file import Job
from ctrbox.cli.main import app
from ctrbox.cli.options import in_words_of_options, pairs_of
from ctrbox.cli.terminal import Mistake, Stopped, say_json
from ctrbox.cli.train import Watch, calibration, check_earlier, fit, train, validation
from ctrbox.errors import DataError, PlanError
from ctrbox.ranks.torchrun_environment import World


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def folder(name: str, *files: str) -> Path:
    for file in files:
        (Path(name) / file).parent.mkdir(parents=True, exist_ok=True)
        (Path(name) / file).touch()
    return Path(name)


FINISHED, BEGUN = ("config.json", "summary.json"), ("config.json", "checkpoints/step-1/x")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `train` asks of `fit`."""
    found: dict[str, Any] = {"settings": {}}
    model = SimpleNamespace(reads=(), __call__=None)

    def load(path: Path, seed: int) -> Job:
        found["seed"] = seed
        return Job(path, SimpleNamespace(), model, settings=found["settings"])

    def fitted(job: Job, place: Path, given: Any, **more: Any) -> str:
        found.update(place=str(place), given=dict(given), **more)
        return "done"

    monkeypatch.setattr(training_command, "load_seeded", load)
    monkeypatch.setattr(training_command, "fit", fitted)
    monkeypatch.setattr(training_command, "finish", lambda done, as_json: found.update(done=done, as_json=as_json))
    monkeypatch.setattr(training_command, "evaluate_command", lambda place, job: f"ctrbox evaluate {place} {job}")
    return found


def test_options_that_are_not_given_are_left_to_the_job(asked: dict[str, Any], capsys: Any) -> None:
    train(Path("job.py"))
    assert (asked["place"], asked["given"], asked["seed"]) == ("runs/job", {}, 0)
    assert (asked["resume"], asked["overwrite"], asked["cluster"], asked["lr"]) == (True, False, None, None)
    assert capsys.readouterr().err == "next: ctrbox evaluate runs/job job.py\n"
    train(Path("job.py"), epochs=2, seed=7, look_ahead=0, calibrate="0.5", tables="keep", cluster="local", workers=3)
    assert asked["given"] == {"epochs": 2, "seed": 7, "look_ahead": 0, "calibrate": 0.5, "tables": "keep"}
    assert (asked["seed"], asked["cluster"]) == (7, ("local", 3, 1))


@pytest.mark.parametrize(
    ("there", "options", "lines"),
    [
        ({}, {}, []),
        ({"runs/job": BEGUN}, {}, ["continuing the unfinished run in runs/job"]),
        ({"runs/job": ("config.json",)}, {}, []),  # begun, and no checkpoint yet
        (
            {"runs/job": FINISHED},
            {},
            [
                "runs/job holds a finished run, so this run is written to runs/job-2; --overwrite replaces the "
                "old run instead"
            ],
        ),
        ({}, {"out": Path("elsewhere")}, []),
        (
            {"runs/old": FINISHED},
            {"earlier": Path("runs/old")},
            [
                "starting from the weights, tables and optimizer states of runs/old; steps, schedule and metrics start at 0"
            ],
        ),
        (
            {"runs/old": FINISHED, "runs/job": BEGUN},
            {"earlier": Path("runs/old")},
            ["continuing the unfinished run in runs/job"],
        ),
    ],
)
def test_where_a_training_begins_is_said(
    asked: dict[str, Any], capsys: Any, there: dict[str, tuple[str, ...]], options: dict[str, Any], lines: list[str]
) -> None:
    for name, files in there.items():
        folder(name, *files)
    train(Path("job.py"), **options)
    assert capsys.readouterr().err.splitlines()[:-1] == lines
    begins = {"warm_up": "continue", "warm_from": "runs/old"} if "earlier" in options else {}
    assert asked["given"] == begins


@pytest.mark.parametrize("name", ["warm_up", "warm_from"])
def test_a_job_that_decides_how_to_begin_is_not_contradicted(asked: dict[str, Any], name: str) -> None:
    asked["settings"] = {name: "continue"}
    train(Path("job.py"))
    folder("runs/old", *FINISHED)
    with pytest.raises(Mistake, match=f"has '{name}', which --from also sets; remove"):
        train(Path("job.py"), earlier=Path("runs/old"))


@pytest.mark.parametrize("more", [{"workers": 2}, {"servers": 2}])
def test_workers_or_servers_alone_need_a_cluster(asked: dict[str, Any], more: dict[str, int]) -> None:
    with pytest.raises(Mistake, match="--workers and --servers need a cluster"):
        train(Path("job.py"), **more)  # type: ignore[arg-type]


def test_an_earlier_run_must_be_finished_and_another_one() -> None:
    check_earlier(None, Path("runs/job"))
    with pytest.raises(Mistake, match=r"^runs/none holds no finished run$"):
        check_earlier(Path("runs/none"), Path("runs/job"))
    old = folder("runs/old", *FINISHED)
    check_earlier(old, Path("runs/job"))
    check_earlier(old, folder("runs/job", *BEGUN))
    with pytest.raises(Mistake, match="runs/job holds no finished run; these runs are finished: runs/old"):
        check_earlier(Path("runs/job"), Path("runs/new"))
    with pytest.raises(Mistake, match="--from runs/old is also the folder into which this run would be written"):
        check_earlier(old, Path("runs/../runs/old"))


def test_words_and_numbers_of_options() -> None:
    assert (calibration(None), calibration("weights"), calibration("-1.5")) == (None, "weights", -1.5)
    plan = SimpleNamespace(over=lambda path: f"log {path}")
    assert (validation(plan, "0.25"), validation(plan, "data")) == (0.25, "log data")


class Trainer:
    """Notes what it is given; ``ends`` is raised after the folder was begun."""

    ends: BaseException | None = None
    given: dict[str, Any]

    def __init__(self, model: Any, table: Any, **options: Any) -> None:
        Trainer.given = options

    def fit(self, plan: Any, *, out: Path, progress: Any, **options: Any) -> Any:
        Trainer.given |= options | {"cores": plan.threads}
        if Trainer.ends is not None:
            raise Trainer.ends
        return SimpleNamespace(report=lambda: out / "report.html")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {}
    monkeypatch.setattr("ctrbox.train.trainer.Trainer", Trainer)
    monkeypatch.setattr(Trainer, "ends", None)
    monkeypatch.setattr(training_command, "remember", lambda place, command: found.update(command=command))
    monkeypatch.setattr(terminal, "farewells", [])
    return found


def a_plan(threads: int) -> SimpleNamespace:
    return SimpleNamespace(threads=threads, over=lambda path: f"log {path}", using=lambda threads: a_plan(threads))


def a_job(**parts: Any) -> Job:
    class Model:
        reads = ()

        def __call__(self) -> None: ...

    return Job(Path("job.py"), a_plan(8), Model(), **{"settings": {"epochs": 3}, **parts})


def test_the_command_of_a_training_holds_what_was_asked_for(trained: dict[str, Any]) -> None:
    job = a_job()
    done = fit(job, Path("runs/x"), {"epochs": 2})
    assert trained["command"] == ["ctrbox", "train", "job.py", "--out", "runs/x", "--epochs", "2"]
    assert (str(done.place), str(done.report)) == ("runs/x", "runs/x/report.html")
    assert Trainer.given["epochs"] == 2
    assert not {"valid", "best_auc", "cluster"} & Trainer.given.keys()
    assert (job.plan.threads, Trainer.given["resume"], Trainer.given["overwrite"]) == (8, True, False)
    job = a_job(tuned=Path("tune/job"))
    asked = {"batch_size": 64, "warm_up": "continue", "warm_from": "runs/old"}
    fit(job, Path("runs/x"), asked, valid="0.2", threads=3, best=0.75, lr=0.5, resume=False, overwrite=True)
    assert trained["command"][5:] == [
        *("--batch-size", "64", "--from", "runs/old", "--lr", "0.5", "--valid", "0.2", "--threads", "3"),
        *("--tuned", "tune/job"),
    ]
    assert (Trainer.given["cores"], Trainer.given["threads"], Trainer.given["valid"], Trainer.given["lr"]) == (
        3,
        3,
        0.2,
        0.5,
    )
    assert (Trainer.given["best_auc"], Trainer.given["epochs"], Trainer.given["warm_up"]) == (0.75, 3, "continue")
    assert (Trainer.given["resume"], Trainer.given["overwrite"]) == (False, True)


def test_options_of_the_dicm_recipe_reach_the_trainer_and_the_command(
    trained: dict[str, Any], asked: dict[str, Any]
) -> None:
    folder("runs/old", *FINISHED)
    more: dict[str, Any] = {"adaptive_l2": 0.25, "decay": "0.9:100", "common": ["clicks", "images"]}
    train(Path("job.py"), earlier=Path("runs/old"), warm_up="partial", **more)
    given = asked["given"]
    assert given == {
        "adaptive_l2": 0.25,
        "schedule": cb.optim.Decay(0.9, 100),
        "warm_up": "partial",
        "warm_from": "runs/old",
    }
    fit(a_job(common=("other",)), Path("runs/x"), given, common=asked["common"])
    assert trained["command"][5:] == [
        *("--adaptive-l2", "0.25", "--decay", "0.9:100", "--warm-up", "partial", "--from", "runs/old"),
        *("--common", "clicks", "--common", "images"),
    ]
    assert (Trainer.given["common"], Trainer.given["schedule"](250)) == (("clicks", "images"), 0.9**2)
    fit(a_job(common=("other",)), Path("runs/x"), {})
    assert Trainer.given["common"] == ("other",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decay": "0.9"}, "--decay 0.9: expected FACTOR:STEPS, such as 0.9:1000"),
        ({"decay": "0.9:x"}, "--decay 0.9:x: expected FACTOR:STEPS"),
        ({"decay": "2:10"}, "--decay 2:10: factor of Decay"),
        ({"warm_up": "partial"}, "--warm-up partial needs the run to start from; add --from RUN"),
    ],
)
def test_wrong_options_of_the_recipe_are_named(asked: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(Mistake, match=words):
        train(Path("job.py"), **options)


OPTIONS: dict[str, Any] = {
    "out": "runs/here",
    "epochs": 2,
    "batch_size": 64,
    "limit": 1000,
    "valid": "0.25",
    "lr": 0.125,
    "seed": 7,
    "negatives": 0.1,
    "calibrate": "platt",
    "patience": 3,
    "evaluate_every": 50,
    "look_ahead": 4,
    "tables": "keep",
    "earlier": Path("runs/old"),
    "decay": "0.9:1000",
    "adaptive_l2": 1e-6,
    "common": ["history", "seen"],
    "threads": 2,
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        *({name: value} for name, value in OPTIONS.items()),
        OPTIONS,
        {"calibrate": "-0.5"},
        {"earlier": Path("runs/old"), "warm_up": "partial"},
        {"cluster": "local", "workers": 3, "servers": 2, "threads": 4},
        {"gpus": 1, "seed": 3},
    ],
)
def test_the_command_that_goes_on_asks_for_the_same(
    asked: dict[str, Any], trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    folder("runs/old", *FINISHED)
    Path("job.py").touch()
    train(Path("job.py"), **options)
    first = {name: value for name, value in asked.items() if name != "done"}
    given = {
        name: value for name, value in first.items() if name not in ("settings", "place", "given", "seed", "as_json")
    }
    fit(a_job(), Path(first["place"]), first["given"], **given)
    name, command, *words = trained["command"]
    assert (name, command) == ("ctrbox", "train")
    asked.clear()
    asked["settings"] = {}
    get_command(app).commands["train"].main(words, standalone_mode=False)  # type: ignore[attr-defined]
    assert {name: value for name, value in asked.items() if name != "done"} == first


def test_a_cluster_is_asked_for_its_workers_and_servers(trained: dict[str, Any]) -> None:
    fit(a_job(), Path("runs/x"), {}, cluster=("local", 3, 2), threads=4)
    assert trained["command"][-6:] == ["--cluster", "local", "--workers", "3", "--servers", "2"]
    cluster = Trainer.given["cluster"]
    assert (cluster.workers, cluster.servers) == (3, 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped(143)])
@pytest.mark.parametrize("begun", [False, True])
def test_a_training_that_was_stopped_says_how_to_go_on_where_something_is_kept(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: BaseException, begun: bool
) -> None:
    monkeypatch.setattr(Trainer, "ends", error)
    if begun:
        folder("a run", "config.json")
    with pytest.raises(type(error)):
        fit(a_job(), Path("a run"), {})
    assert terminal.farewells == (["resume: ctrbox train job.py --out 'a run'"] if begun else [])
    assert not trained


@pytest.mark.parametrize("alone", [True, False])
def test_a_training_that_fails_leaves_the_ranks(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    done: list[Any] = []
    world = World(0, 2, 2, "host", 1, True, 0, True)
    ranks = SimpleNamespace(world=world, exchange="auto", timeout=600.0, leave=lambda: done.append("left"))
    error = ValueError("odd")
    monkeypatch.setattr(training_command, "end_of_rank", lambda of, why: done.append((of, why)))
    monkeypatch.setattr(training_command, "threads_of", lambda of: 3 if of is world else 0)
    given: dict[str, Any] = {"ranks": None if alone else ranks}
    fit(a_job(), Path("runs/x"), {}, **given)
    assert trained["command"][5:] == ([] if alone else ["--ranks", "2"])
    assert (Trainer.given["threads"], Trainer.given.get("cluster")) == ((None, None) if alone else (3, ranks))
    assert done == ([] if alone else ["left"])
    done.clear()
    monkeypatch.setattr(Trainer, "ends", error)
    with pytest.raises(ValueError, match="odd"):
        fit(a_job(), Path("runs/x"), {}, **given)
    assert done == ([] if alone else [(ranks, error), "left"])
    if not alone:
        with pytest.raises(Mistake, match="look-ahead cannot be used when several processes train together"):
            fit(a_job(settings={"look_ahead": 1}), Path("runs/x"), {}, **given)


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(training_command, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = Watch()
    facts: dict[str, Any] = {
        "share": 0.255,
        "rows": 12345,
        "rows_per_second": 999.6,
        "shown": "epoch 1",
        "loss": 0.12345,
    }
    for at, left in ((114.9, None), (115.0, None), (129.9, 3.0), (130.0, 1234.4)):
        now[0] = at
        watch.see(SimpleNamespace(**facts, seconds_left=left))  # type: ignore[arg-type]
    watch.resumed(1000, 20_000)
    watch.end()
    assert capsys.readouterr().err.splitlines() == [
        " 26%  12,345 rows, 1,000 rows/s  epoch 1  loss 0.1235",
        " 26%  12,345 rows, 1,000 rows/s  epoch 1  loss 0.1235  1,234 s left",
        "continuing after step 1,000 (20,000 rows)",
    ]
    figures = {"logloss": 0.5, "auc": 0.75, "rows": 10.0}
    Watch(quiet=True).evaluated(figures)
    assert not capsys.readouterr().err
    watch.evaluated(figures)
    assert capsys.readouterr().err.startswith("validation  ")


# ---- options and streams


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        (["a=b"], {"a": "b"}),
        (["a=b=c", "d=e"], {"a": "b=c", "d": "e"}),
        (["a=~/x"], {"a": str(Path.home() / "x")}),
        (["a=x~"], {"a": "x~"}),
        (["a"], "--view a: expected NAME=PATH, such as --view u=v"),
        (["=b"], "--view =b: expected NAME=PATH"),
        (["a="], "--view a=: expected NAME=PATH"),
        (["a=b", "a=c"], "--view a=… is given twice: b and c; remove one of the two"),
    ],
)
def test_pairs_of_names_and_paths(given: list[str] | None, expected: Any) -> None:
    if isinstance(expected, dict):
        assert pairs_of("--view", given, "u=v") == expected
        return
    with pytest.raises(Mistake) as told:
        pairs_of("--view", given, "u=v")
    assert str(told.value).startswith(expected)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("use overwrite=True, resume=True or out=", "use --overwrite, --resume or --out"),
        ("with the same out= to continue it", "with the same --out to continue it"),
        ("out=runs/x is taken", "--out runs/x is taken"),
        ("allow them: load(…, allow_views=['/a', '/b'])", "allow them: --allow-views '/a' --allow-views '/b'"),
        ("lr= is too large", "--lr is too large"),
        ("patience= needs rows", "--patience needs rows"),
    ],
)
def test_errors_speak_of_options_where_they_name_arguments(told: str, expected: str) -> None:
    with pytest.raises(Mistake) as found, in_words_of_options():
        raise PlanError(told)
    assert str(found.value) == expected
    with pytest.raises(DataError, match="as it is"), in_words_of_options():
        raise DataError("as it is")


def test_numbers_that_json_has_not_are_null(capsys: Any) -> None:
    say_json(a=float("nan"), b=[float("inf"), 1.5, (2, -float("inf"))], c={"d": float("nan"), "e": "text"}, f=Path("x"))
    found = json.loads(capsys.readouterr().out)
    assert found == {"a": None, "b": [None, 1.5, [2, None]], "c": {"d": None, "e": "text"}, "f": "x"}


def test_what_is_no_folder_of_a_model_is_told_what_to_do() -> None:
    assert serving.no_folder(Path("nowhere")) == ""
    folder("model", "serve.json", "weights/CURRENT")
    assert serving.no_folder(Path("model")) == ""
    assert serving.no_folder(Path("model/weights")).endswith("pass the model folder above it: ctrbox serve model")
    folder("published", "CURRENT")
    assert (
        "holds published versions but no plan, and a server needs both. To create a model folder with both:"
        in serving.no_folder(Path("published"))
    )
    (Path("published") / "serve.json").touch()
    assert serving.no_folder(Path("published")) == ""
    folder(".", "x.ffm")
    assert "x.ffm is a file" in serving.no_folder(Path("x.ffm"))


def test_facts_of_a_table_are_shown_in_words_and_with_commas() -> None:
    assert [tables._shown(v) for v in (True, False, 1234567, 7.5, "Adagrad")] == [
        "yes",
        "no",
        "1,234,567",
        "7.5",
        "Adagrad",
    ]


def test_rows_of_a_table_are_cut_into_weight_vector_and_states() -> None:
    import numpy as np

    keys, versions, floats = np.array([7]), np.array([1], np.uint32), np.arange(6, dtype=np.float32)[None]
    found = tables._columns(SimpleNamespace(linear=1, width=3, dim=2), keys, versions, floats).to_pylist()
    assert found == [{"key": 7, "version": 1, "weight": 0.0, "vector": [1.0, 2.0], "states": [3.0, 4.0, 5.0]}]
    plain = tables._columns(SimpleNamespace(linear=0, width=6, dim=6), keys, versions, floats).to_pylist()
    assert plain == [{"key": 7, "version": 1, "vector": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "states": None}]


def test_a_table_of_a_run_is_found_by_the_files_around_it() -> None:
    from ctrbox.predict.weights_folder import STATE

    table = Path("runs/a/model/table-0.ctrtable")
    table.mkdir(parents=True)
    assert tables.of_a_run(table) is None
    folder("runs/a/model", STATE)
    assert tables.of_a_run(table) == table.resolve().parent
    folder("runs/a", "config.json")
    assert tables.of_a_run(table) == Path("runs/a").resolve()
    other = Path("runs/a/model/table")
    other.mkdir()
    assert tables.of_a_run(other) is None
    tables.refuse_of_a_run(other)
    assert not tables.of_a_checkpoint(table)
    with pytest.raises(Mistake, match=r"is part of the run in .*cp -r .* table-0 && ctrbox table compact table-0"):
        tables.refuse_of_a_run(table)
    folder("runs/a", "TABLES")
    with pytest.raises(Mistake, match="is part of a checkpoint of several tables"):
        tables.refuse_of_a_run(table)
