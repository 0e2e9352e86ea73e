"""Runs as the command line reads them: a model of one's own, rows that were in memory, views from elsewhere, plans in files."""

from __future__ import annotations

import importlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

import ctrbox as cb
from ctrbox import col
from ctrbox.cli.main import app
from ctrbox.cli.terminal import Mistake
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.served_models import open_served
from tests.serve.running import running

OWN = """\
import torch

import ctrbox as cb
from ctrbox import col

users = cb.View("data/users.parquet", key="user").fill(age=0)
log = cb.View("data/log.parquet", key="id", name="log").join(users, on="user")
features = cb.FeatureSet(
    label=col("clicked"),
    sparse={"user": col("user").key(), "ad": col("ad").key()},
    dense={"age": col("age"), "price": col("price").standardize()},
)
plan = cb.compile(log, features, device="cpu")


class Mine(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.reads = cb.models.Reads(schema, dim=4, linear=True)
        self.top = torch.nn.Linear(self.reads.width + schema.dense_width, 1)

    def forward(self, x):
        return x.linear.sum(1) + self.top(torch.cat([x.flat, x.dense * 0.01], 1)).squeeze(1)


model = Mine(plan.schema)
settings = {"batch_size": 100, "valid": 0.25}
"""

N = 400
LOG = pa.table(
    {
        "id": np.arange(N),
        "user": np.arange(N) % 20,
        "ad": np.arange(N) // 3 % 10,
        "price": np.arange(N) % 7 + 0.5,
        "clicked": (np.arange(N) % 20 + np.arange(N) // 3 % 10) % 2,
    }
)
USERS = pa.table({"user": np.arange(20), "age": np.arange(20) + 18})


def ctrbox(*words: object) -> None:
    typer.main.get_command(app).main([str(w) for w in words], prog_name="ctrbox", standalone_mode=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a run of a model of one's own, and one of a frame in memory that joins another."""
    place = tmp_path_factory.mktemp("home")
    (place / "data").mkdir()
    pq.write_table(LOG, place / "data" / "log.parquet")
    pq.write_table(USERS, place / "data" / "users.parquet")
    (place / "own.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "argv", ["ctrbox"])
        patch.setattr(sys, "path", list(sys.path))
        ctrbox("train", "own.py")
    users = cb.View(USERS, key="user", name="users").fill(age=0)
    features = cb.FeatureSet(
        label=col("clicked"), sparse={"user": col("user").key()}, dense={"age": col("age"), "price": col("price")}
    )
    joined = cb.compile(cb.View(LOG, name="log").join(users, on="user"), features, device="cpu")
    plain = cb.compile(
        cb.View(LOG, name="log"), cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}), device="cpu"
    )
    for name, plan in (("joined", joined), ("plain", plain)):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, batch_size=100, valid=0.25, out=place / "runs" / name)
    return place


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CTRBOX_ALLOW_VIEWS", raising=False)
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "argv", ["ctrbox"])
    monkeypatch.setattr(sys, "path", list(sys.path))


# ---- a model of one's own


def test_a_model_of_ones_own_is_asked_for_by_the_job_that_has_it(home: Path) -> None:
    (home / "trap.py").write_text("raise SystemExit('imported')")
    for words in (
        ("evaluate", "runs/own"),
        ("predict", "runs/own", "data/log.parquet", "-o", "p.parquet"),
        ("serve", "runs/own"),
        ("publish", "create", "made", "--model", "runs/own", "--context", "user"),
    ):
        with pytest.raises(
            Mistake, match=r"was trained with 'Mine', which is not one of cb\.models; name the job .* --job JOB\.PY"
        ):
            ctrbox(*words)
    assert not (home / "made").exists()


def test_with_its_job_a_model_of_ones_own_is_evaluated_and_predicts(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ctrbox("evaluate", "runs/own", "--job", "own.py", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 100
    assert found["auc"] == pytest.approx(json.loads((home / "runs/own/summary.json").read_text())["metrics"]["auc"])
    ctrbox("predict", "runs/own", "data/log.parquet", "--job", "own.py", "-o", "own.parquet")
    assert pq.read_table("own.parquet").num_rows == N


def test_another_job_than_that_of_the_run_is_refused(home: Path) -> None:
    (home / "other.py").write_text(OWN.replace('"ad": col("ad").key()', '"ad": col("ad").key("x")'))
    with pytest.raises(Mistake, match=r"other\.py is not the job of this run"):
        ctrbox("evaluate", "runs/own", "--job", "other.py")


# ---- operators that a run names

MARKING = """\
from pathlib import Path

import ctrbox as cb

Path("imported").touch()


@cb.operator(args=["int"], result="int", arrays="numpy")
def same(x):
    return x
"""


@pytest.fixture
def strange(home: Path) -> Iterator[Path]:
    """A run with an operator of the module `marking`, which leaves the file `imported` when it is imported."""
    (home / "marking.py").write_text(MARKING)
    sys.path.insert(0, str(home))
    importlib.invalidate_caches()
    same = importlib.import_module("marking").same
    features = cb.FeatureSet(label=col("clicked"), sparse={"user": same(col("user")).key()})
    plan = cb.compile(cb.View("data/log.parquet", key="id", name="log"), features, device="cpu")
    shutil.rmtree("strange", ignore_errors=True)
    cb.Trainer(cb.models.LR(plan.schema)).fit(plan, batch_size=100, valid=0.25, out="strange")
    del sys.modules["marking"]
    (home / "imported").unlink()
    yield home / "strange"
    sys.modules.pop("marking", None)
    (home / "imported").unlink(missing_ok=True)


def test_an_operator_that_only_the_run_names_is_not_imported_with_a_job(strange: Path, home: Path) -> None:
    log = ("--view", "log=data/log.parquet")
    for words in (
        ("evaluate", "strange"),
        ("evaluate", "strange", *log),
        ("predict", "strange", "data/log.parquet", "-o", "p.parquet"),
        ("serve", "strange"),
        ("serve", "strange", *log),
        ("publish", "create", "made", "--model", "strange", "--context", "user"),
        ("publish", "push", "pushed", "strange"),
    ):
        with pytest.raises(
            Mistake, match=r"own\.py is not the job of this run: .*'marking:same', which this job does not define$"
        ):
            ctrbox(*words, "--job", "own.py")
        assert not (home / "imported").exists()
    plan = cb.compile(
        cb.View("data/log.parquet", name="log"),
        cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}),
        device="cpu",
    )
    with pytest.raises(PlanError, match=r"'marking:same', and loading the plan would import"):
        cb.Run.load("strange", plan=plan)
    assert not (home / "imported").exists()
    cb.Run.load("strange", allow_operators=True)
    assert (home / "imported").exists()


def test_the_operators_of_the_job_serve_its_own_run(
    strange: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "theirs.py").write_text(
        "import ctrbox as cb\nfrom ctrbox import col\nfrom marking import same\n"
        'features = cb.FeatureSet(label=col("clicked"), sparse={"user": same(col("user")).key()})\n'
        'plan = cb.compile(cb.View("data/log.parquet", key="id", name="log"), features, device="cpu")\n'
    )
    for more in ((), ("--view", "log=data/log.parquet")):
        ctrbox("evaluate", "strange", "--job", "theirs.py", "--json", *more)
        assert json.loads(capsys.readouterr().out)["rows"] == 100


# ---- a model of one's own, published


def test_a_model_of_ones_own_is_published_whole_and_served_with_its_job(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("model", ignore_errors=True)
    words = ("publish", "create", "model", "--model", "runs/own", "--job", "own.py", "--context", "user")
    ctrbox(*words)
    assert "next: ctrbox serve model --job own.py" in capsys.readouterr().err
    ctrbox("publish", "push", "model/weights", "runs/own", "--job", "own.py")
    assert [v.kind for v in ModelFolder.open("model").published.log()] == ["click_model"] * 2
    with pytest.raises(Mistake, match=r"user-defined model class 'Mine'.*--job JOB\.PY"):
        ctrbox("serve", "model")

    rows = LOG.select(["user", "ad", "price"]).slice(5, 1).to_pylist()
    expected = cb.Run.load("runs/own", **own()).predict(rows)
    served = open_served(ModelFolder.open("model"), own_model=own()["model"])
    user = {"user": rows[0].pop("user")}
    body = orjson.dumps({"context": user, "candidates": rows})
    scores, version = served.score(served.reader.from_json(body))
    assert version == 2
    assert np.abs(scores - expected).max() < 1e-4  # 16-bit codes
    with running(home / "model", "--job", "own.py") as server:
        answer = server.score(body)
        assert answer.status_code == 200, answer.text
        assert np.abs(np.array(answer.json()["scores"]) - expected).max() < 1e-4
    whole = open_served(ModelFolder.open("runs/own"), own_model=own()["model"], own_plan=own()["plan"])
    assert np.array_equal(whole.score(whole.reader.from_json(body))[0], expected)


def own() -> dict[str, object]:
    from ctrbox.cli.job_file import load_job

    job = load_job(Path("own.py"))
    return {"model": job.model, "plan": job.plan}


def test_a_run_of_a_model_of_ours_becomes_a_served_folder_without_a_job(home: Path) -> None:
    shutil.rmtree("plain", ignore_errors=True)
    with pytest.raises(
        Mistake,
        match="--context is missing; list the log columns that a client sends once per request, such as "
        "--context user_id,query",
    ):
        ctrbox("publish", "create", "plain", "--model", "runs/plain")
    ctrbox("publish", "create", "plain", "--model", "runs/plain", "--context", "user")
    served = open_served(ModelFolder.open("plain"))
    scores, _ = served.score(served.reader.from_json(orjson.dumps({"context": {"user": 3}, "candidates": [{}]})))
    assert np.abs(scores - cb.Run.load("runs/plain").predict([{"user": 3}])).max() < 1e-4


# ---- rows that were in memory


def test_a_run_of_a_frame_in_memory_predicts_and_is_evaluated_on_data_that_is_given(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ctrbox("predict", "runs/plain", "data/log.parquet", "-o", "plain.parquet")
    assert pq.read_table("plain.parquet").num_rows == N
    capsys.readouterr()
    ctrbox("evaluate", "runs/plain", "data/log.parquet", "--json")
    assert json.loads(capsys.readouterr().out)["rows"] == N
    with pytest.raises(Mistake, match=r"trained on rows in memory.*ctrbox evaluate RUN DATA.*--view log=PATH"):
        ctrbox("evaluate", "runs/plain")
    ctrbox("evaluate", "runs/plain", "--view", "log=data/log.parquet", "--json")
    held = json.loads(capsys.readouterr().out)
    assert held["auc"] == pytest.approx(json.loads((home / "runs/plain/summary.json").read_text())["metrics"]["auc"])


def test_a_joined_frame_in_memory_is_given_by_name(home: Path) -> None:
    with pytest.raises(Mistake, match=r"view 'users' was made of rows in memory.*pass them: --view users=PATH"):
        ctrbox("predict", "runs/joined", "data/log.parquet", "-o", "joined.parquet")
    ctrbox("predict", "runs/joined", "data/log.parquet", "--view", "users=data/users.parquet", "-o", "joined.parquet")
    expected = cb.Run.load("runs/joined", views={"users": USERS}).predict(LOG.select(["user", "price"]))
    assert np.abs(pq.read_table("joined.parquet")["probability"].to_numpy() - expected).max() < 1e-6
    with pytest.raises(Mistake, match=r"view 'users' was made of rows in memory.*--view users=PATH"):
        ctrbox("serve", "runs/joined")
    with pytest.raises(CtrboxError, match=r"no view 'user'; nearest: 'users'"):
        ctrbox(
            "predict", "runs/joined", "data/log.parquet", "--view", "user=data/users.parquet", "-o", "joined.parquet"
        )


def test_a_run_of_a_frame_without_joins_needs_no_view_to_be_served(home: Path) -> None:
    served = open_served(ModelFolder.open("runs/plain"))
    scores, _ = served.score(served.reader.from_json(orjson.dumps({"candidates": [{"user": 3}]})))
    assert np.array_equal(scores, cb.Run.load("runs/plain").predict([{"user": 3}]))


def test_data_of_other_types_is_refused_and_nulls_are_told_with_advice_for_the_data(home: Path) -> None:
    pq.write_table(LOG.set_column(1, "user", LOG["user"].cast(pa.string())), "texts.parquet")
    with pytest.raises(
        PlanError, match=r"column 'user' of view 'log' is str in texts\.parquet, but the plan was built on int"
    ):
        ctrbox("predict", "runs/plain", "texts.parquet", "-o", "x.parquet")
    holes = LOG.set_column(3, "price", pa.array([None if k == 7 else 1.5 for k in range(N)]))
    pq.write_table(holes, "holes.parquet")
    said = r"column 'price' is null at holes\.parquet row 7.*fill or leave out such rows in this data, or train again"
    for words in (("evaluate",), ("predict", "-o", "x.parquet")):
        verb, *options = words
        with pytest.raises(DataError, match=said):
            ctrbox(verb, "runs/joined", "holes.parquet", "--view", "users=data/users.parquet", *options)
    assert not (home / "x.parquet").exists()


# ---- views from elsewhere


def test_views_outside_are_opened_where_the_command_line_allows_them(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "data"
    shutil.copytree(home / "data", elsewhere)
    log = cb.View(str(elsewhere / "log.parquet"), name="log")
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}), device="cpu")
    cb.Trainer(cb.models.LR(plan.schema)).fit(plan, batch_size=100, valid=0.25, out=home / "runs" / "outside")
    with pytest.raises(
        Mistake, match=r"if you trust it: --allow-views '.*/data/log\.parquet', or pass .*: --view log=PATH"
    ):
        ctrbox("evaluate", "runs/outside")
    capsys.readouterr()
    ctrbox("evaluate", "runs/outside", "--allow-views", elsewhere, "--json")
    assert json.loads(capsys.readouterr().out)["rows"] == 100
    ctrbox("predict", "runs/outside", "data/log.parquet", "-o", "outside.parquet")  # opens no view of the run
    monkeypatch.setenv("CTRBOX_ALLOW_VIEWS", str(elsewhere))
    ctrbox("evaluate", "runs/outside")


def job_over(folder: Path) -> str:
    """A job whose log and joined view lie in a folder."""
    return f"""\
import ctrbox as cb
from ctrbox import col

users = cb.View("{folder}/us*.parquet", key="user", name="users").fill(age=0)
log = cb.View("{folder}/log.parquet", key="id", name="log").join(users, on="user")
features = cb.FeatureSet(label=col("clicked"), sparse={{"user": col("user").key()}}, dense={{"age": col("age")}})
plan = cb.compile(log, features, device="cpu")
model = cb.models.LR(plan.schema)
settings = {{"batch_size": 100, "valid": 0.25}}
"""


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("inside", ()),
        ("inside", ("--valid", "0")),
        ("inside", ("--valid", "data/log.parquet")),
        ("outside", ()),
        ("outside", ("--valid", "0")),
    ],
)
def test_the_command_that_follows_a_training_runs(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, options: tuple[str, ...]
) -> None:
    if where == "outside":
        shutil.copytree(home / "data", tmp_path / "data")
    (tmp_path / "job.py").write_text(job_over(tmp_path / "data" if where == "outside" else home / "data"))
    run = f"hints/{where}{'-'.join(options).replace('/', '-')}"
    ctrbox("train", tmp_path / "job.py", "--out", run, *options)
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"next: ctrbox evaluate {run}")
    assert ("--allow-views" in told) == (where == "outside")
    words = shlex.split(told.removeprefix("next: ctrbox "))
    assert ("DATA" in words) == bool(options)
    ctrbox(*(str(home / "data" / "log.parquet") if word == "DATA" else word for word in words))
    again = capsys.readouterr().err.splitlines()[-1]
    words = shlex.split(again.removeprefix("next: ctrbox "))
    ctrbox(*(str(home / "data" / "log.parquet") if word == "DATA" else word for word in words))
    ctrbox("report", run)
    assert told in capsys.readouterr().err


def test_predictions_without_a_key_say_that_they_cannot_be_matched(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ctrbox("predict", "runs/plain", "data/log.parquet", "-o", "keyless.parquet")
    assert pq.read_table("keyless.parquet").column_names == ["probability"]
    assert "warning: view 'log' has no key, so the output has only the column 'probability'" in capsys.readouterr().err
    ctrbox("predict", "runs/own", "data/log.parquet", "-o", "keyed.parquet", "--job", "own.py")
    assert "has no key" not in capsys.readouterr().err


def test_every_view_that_is_refused_is_named_at_once(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "data", tmp_path / "data")
    (tmp_path / "job.py").write_text(job_over(tmp_path / "data"))
    ctrbox("train", tmp_path / "job.py", "--out", "hints/refused")
    with pytest.raises(Mistake, match="refused too") as met:
        ctrbox("evaluate", "hints/refused")
    said = str(met.value)
    assert f"--allow-views '{tmp_path}/data/log.parquet'" in said
    assert f"--allow-views '{tmp_path}/data'" in said  # of the wildcard: naming us*.parquet would allow nothing
    assert "--view log=PATH" in said
    assert "--view users=PATH" in said
    ctrbox(
        "evaluate",
        "hints/refused",
        "--allow-views",
        f"{tmp_path}/data/log.parquet",
        "--allow-views",
        f"{tmp_path}/data",
    )


def test_a_run_in_its_usual_place_finds_its_data_from_any_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cb.View(str(home / "data" / "log.parquet"), name="log")
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key()}), device="cpu")
    cb.Trainer(cb.models.LR(plan.schema)).fit(plan, batch_size=100, valid=0.25, out=home / "runs" / "usual")
    monkeypatch.chdir(tmp_path)
    ctrbox("evaluate", home / "runs" / "usual")


# ---- plans


def test_explain_and_show_take_a_run_a_served_model_and_a_saved_plan(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = cb.Plan.load("runs/own/plan.ctrplan")
    plan.save("own.plan")
    shown = plan.explain()
    for path in ("runs/own", "own.plan", "runs/joined"):
        ctrbox("explain", path)
        said = capsys.readouterr().out
        assert said.strip() == (shown if "own" in path else cb.Plan.load("runs/joined/plan.ctrplan").explain()).strip()
    ctrbox("explain", "runs/own", "--json")
    assert json.loads(capsys.readouterr().out)
    ctrbox("show", "runs/own", "-o", "own.svg")
    assert Path("own.svg").read_text().startswith("<svg")
    with pytest.raises(Mistake, match="data is a folder; expected a job file"):
        ctrbox("explain", "data")
    with pytest.raises(Mistake, match="there is no job file"):
        ctrbox("explain", "nothing.plan")


def test_the_learning_rate_may_be_written_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((Mistake, CtrboxError), match=r"lr"):
        ctrbox("train", "own.py", "--learning-rate", "-1", "--out", "hints/rate")
