"""A plan from somebody else: loading opens nothing, and running opens only what the user allows."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.compiled_plan.plan_file import HEAD, MAGIC, load_plan
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.plan.graph.expression_json import canonical
from ctrbox.views.allowed_paths import VARIABLE, Allowed

USERS = pa.table({"user": [1, 2, 3], "age": [20, 30, 40]})
LOG = pa.table({"user": [1, 2, 3], "price": [1.0, 2.5, 3.0], "clicked": [0, 1, 0]})


@pytest.fixture(autouse=True)
def _nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def features() -> cb.FeatureSet:
    return cb.FeatureSet(
        label=col("clicked"), sparse={"user": col("user").key()}, dense={"age": col("age"), "p": col("price")}
    )


def job(data: Path) -> cb.Plan:
    """A plan over files below ``data``: a log that joins users."""
    for name, table in (("log", LOG), ("users", USERS)):
        (data / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, data / name / "part.parquet")
    users = cb.View(str(data / "users"), key="user").fill(age=0)
    return cb.compile(cb.View(str(data / "log"), name="log").join(users, on="user"), features(), device="cpu")


def header_of(path: Path) -> dict[str, Any]:
    saved = path.read_bytes()
    length = HEAD.unpack(saved[: HEAD.size])[2]
    found: dict[str, Any] = json.loads(saved[HEAD.size : HEAD.size + length])
    return found


def changed(path: Path, header: dict[str, Any]) -> None:
    """Write a saved plan again with another header, all checksums right."""
    saved = path.read_bytes()
    _, version, length = HEAD.unpack(saved[: HEAD.size])
    text = canonical(header).encode()
    data = HEAD.pack(MAGIC, version, len(text)) + text + saved[HEAD.size + length : -32]
    path.write_bytes(data + hashlib.sha256(data).digest())


def renamed(path: Path, paths: dict[str, str]) -> None:
    """Let a saved plan name other paths, as an attacker would."""
    head = header_of(path)
    for view in head["views"]:
        if view["name"] in paths:
            view["source"]["paths"] = [paths[view["name"]]]
    changed(path, head)


TARGETS = ["s3://bucket/users?endpoint=127.0.0.1:9", "hdfs://127.0.0.1:9/users", "/etc", "../../*"]
WATCHED = """
import sys, json
import ctrbox as cb, pyarrow as pa
from ctrbox.compiled_plan import plan_file
cb.compile(cb.View(pa.table({"a": [1.0]})), cb.FeatureSet(dense={"a": cb.col("a")}), device="cpu").explain()  # imports all
met = []
def watch(event, args):
    if event == "open" and isinstance(args[0], int):
        return  # a file object over a descriptor whose opening was seen
    if event.startswith("socket.") or event in ("open", "os.listdir", "os.scandir", "glob.glob", "subprocess.Popen"):
        met.append([event, str(args[0]) if args else ""])
sys.addaudithook(watch)
answers = []
for path in sys.argv[1:]:
    met.clear()
    plan = cb.Plan.load(path)
    plan.fingerprint, plan.schema, plan.explain()
    loaded = list(met)
    try:
        plan.run(pa.table({"user": [1], "price": [1.0]}))
        said = "ran"
    except cb.errors.CtrboxError as error:
        said = str(error)
    answers.append([loaded, said, met[len(loaded):]])
print(json.dumps(answers))
"""


def test_loading_a_plan_opens_no_path_and_contacts_no_host(tmp_path: Path) -> None:
    plan, plans = job(tmp_path / "data"), [str(tmp_path / f"{k}.plan") for k in range(len(TARGETS))]
    for path, target in zip(plans, TARGETS, strict=True):
        plan.save(path)
        renamed(Path(path), {"users": target, "log": target})
    (tmp_path / "here").mkdir()
    run = subprocess.run(
        [sys.executable, "-c", WATCHED, *plans],
        capture_output=True,
        text=True,
        cwd=tmp_path / "here",
        env={**os.environ, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"},
    )
    assert run.returncode == 0, run.stderr
    for path, target, (loaded, said, later) in zip(plans, TARGETS, json.loads(run.stdout), strict=True):
        ours = [m for m in loaded if ".py" not in m[1] and "/sys/" not in m[1] and "/proc/" not in m[1]]
        assert ours == [["open", path]]
        # The joined view is needed to answer a request: refused, with what to type, and still without a look at it.
        assert f"load(…, allow_views=['{target.removesuffix('/*')}'])" in said
        assert "views={'users': …}" in said
        assert not [m for m in later if "socket" in m[0] or m[0] in ("os.listdir", "os.scandir", "glob.glob")]


def test_a_request_that_needs_no_view_runs_whatever_paths_the_plan_names(tmp_path: Path) -> None:
    plan = cb.compile(cb.View(LOG, name="log"), cb.FeatureSet(dense={"p": col("price")}), device="cpu")
    plan.save(tmp_path / "p.plan")
    assert cb.Plan.load(tmp_path / "p.plan").run(LOG).dense[:, 0].tolist() == [1.0, 2.5, 3.0]


def test_views_beside_the_plan_below_the_current_folder_and_named_ones_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("data", "plans", "elsewhere"):
        (tmp_path / folder).mkdir()
    plan = job(tmp_path / "data")
    plan.save(tmp_path / "p.plan")
    plan.save(tmp_path / "plans" / "p.plan")
    monkeypatch.chdir(tmp_path / "elsewhere")

    def rows(path: str, **options: Any) -> int:
        return sum(b.rows for b in cb.Plan.load(tmp_path / path, **options).batches(8))

    assert rows("p.plan") == 3  # beside the plan
    with pytest.raises(
        PlanError, match=r"neither below the current folder nor beside the plan.*allow_views=\['.*/data/\w+'\]"
    ):
        rows("plans/p.plan")
    assert rows("plans/p.plan", allow_views=[str(tmp_path / "data")]) == 3
    assert rows("plans/p.plan", allow_views=["../data/"]) == 3
    assert rows("plans/p.plan", allow_views=["*"]) == 3
    assert rows("plans/p.plan", views={"log": LOG, "users": USERS}) == 3
    with pytest.raises(PlanError, match="allow_views"):
        rows("plans/p.plan", allow_views=["../dat"])
    with pytest.raises(PlanError, match="must be a list of paths"):
        rows("plans/p.plan", allow_views="../data")
    monkeypatch.setenv(VARIABLE, f"s3://bucket/, {tmp_path / 'data'}")
    assert rows("plans/p.plan") == 3
    monkeypatch.delenv(VARIABLE)
    monkeypatch.chdir(tmp_path)
    assert rows("plans/p.plan") == 3  # below the current folder


def test_links_and_dots_do_not_lead_out_of_an_allowed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    pq.write_table(USERS, secret / "users.parquet")
    home = tmp_path / "home"
    plan = job(home / "data")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (home / "link").symlink_to(secret)
    (home / "inside").mkdir()
    (home / "inside" / "a.parquet").symlink_to(secret / "users.parquet")
    for path in (
        "link",
        "link/*.parquet",
        "../secret",
        "data/../../secret",
        "data/*/../../../secret",
        "inside",
        "inside/*",
    ):
        plan.save(home / "p.plan")
        renamed(home / "p.plan", {"users": f"{home}/{path}"})
        with pytest.raises(PlanError, match="allow_views"):
            next(cb.Plan.load(home / "p.plan").batches(8))
    plan.save(home / "p.plan")
    renamed(home / "p.plan", {"users": f"{home}/data/users/*"})
    assert next(cb.Plan.load(home / "p.plan").batches(8)).rows == 3
    # A link of the current folder is the user's own; one that is left by dots is not.
    (tmp_path / "here" / "mine").symlink_to(secret)
    renamed(home / "p.plan", {"users": "mine"})
    assert next(cb.Plan.load(home / "p.plan").batches(8)).rows == 3
    renamed(home / "p.plan", {"users": "mine/../secret"})
    with pytest.raises(PlanError, match="allow_views"):
        next(cb.Plan.load(home / "p.plan").batches(8))


def test_a_remote_path_is_allowed_by_its_host_its_folder_and_its_options() -> None:
    allowed = Allowed(["s3://bucket/logs", "hdfs://name:9000/", "s3://own/?endpoint=minio:9000"])
    for good in (
        "s3://bucket/logs",
        "s3a://bucket/logs/day=1/*",
        "hdfs://name:9000/x/y",
        "s3://own/k?endpoint=minio:9000",
    ):
        assert allowed.refused([good]) is None, good
    for bad in (
        "s3://bucket/logs2",
        "s3://bucket",
        "s3://bucket/logs/../keys",
        "s3://bucket/logs?endpoint=evil:9000",
        "s3://bucket/logs?role_arn=x",
        "s3://own/k",
        "s3://own/k?endpoint=evil",
        "hdfs://name:9001/x",
        "hdfs://name:9000.evil/x",
        "http://name/x",
    ):
        assert allowed.refused([bad]) == bad
    assert Allowed(["*"]).refused(["s3://any/thing", "/etc/passwd"]) is None


def test_a_program_in_the_root_folder_does_not_allow_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert Allowed().refused(["/etc/hostname"]) == "/etc/hostname"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["columns"][0].__setitem__(2, 1 << 40), "width of a list"),
        (lambda v: v["columns"][0].__setitem__(1, "zz"), "two types"),
        (lambda v: v.update(schema="AAAA"), "Arrow schema"),
        (lambda v: v.update(rows=-1), "a count"),
        (lambda v: v.update(columns=[v["columns"][0]] * 2), "the same name"),
        (lambda v: v["source"].update(paths=["a\0b"]), "paths"),
        (lambda v: v.update(key=["nothing"]), "key 'nothing'"),
        (lambda v: v.update(keep="first"), "keep"),
    ],
)
def test_descriptions_of_views_that_contradict_themselves_are_refused(change: Any, said: str, tmp_path: Path) -> None:
    job(tmp_path).save(tmp_path / "p.plan")
    head = header_of(tmp_path / "p.plan")
    change(next(v for v in head["views"] if v["name"] == "log"))
    changed(tmp_path / "p.plan", head)
    with pytest.raises(PlanError, match=said):
        cb.Plan.load(tmp_path / "p.plan")


def test_plans_that_were_saved_without_arrow_types_are_read(tmp_path: Path) -> None:
    plan = job(tmp_path)
    plan.save(tmp_path / "p.plan")
    head = header_of(tmp_path / "p.plan")
    for view in head["views"]:
        for fact in ("schema", "rows", "bytes", "ordered"):
            del view[fact]
    changed(tmp_path / "p.plan", head)
    old = cb.Plan.load(tmp_path / "p.plan")
    assert old.fingerprint == plan.fingerprint
    assert [b.dense.tolist() for b in old.batches(8)] == [b.dense.tolist() for b in plan.batches(8)]


# ---- data that is not as the plan was made on


def test_data_that_changed_its_types_since_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    job(tmp_path).save(tmp_path / "p.plan")
    texts = LOG.set_column(0, "user", LOG["user"].cast(pa.string()))
    pq.write_table(texts, tmp_path / "log" / "part.parquet")
    loaded = cb.Plan.load(tmp_path / "p.plan")
    with pytest.raises(PlanError, match=r"column 'user' of view 'log' is str in .*, but the plan was built on int"):
        next(loaded.batches(8))
    pq.write_table(LOG.drop_columns("price"), tmp_path / "log" / "part.parquet")
    with pytest.raises(DataError, match="lacks column 'price'"):
        next(cb.Plan.load(tmp_path / "p.plan").batches(8))


def test_another_log_of_other_types_is_refused_and_not_hashed_to_other_keys(tmp_path: Path) -> None:
    plan = job(tmp_path)
    texts = LOG.set_column(0, "user", LOG["user"].cast(pa.string()))
    with pytest.raises(PlanError, match="column 'user' of view 'log' is str in memory, but the plan was built on int"):
        plan.over(texts)
    with pytest.raises(PlanError, match="column 'age' of view 'users' is str in memory"):
        plan.over(LOG, views={"users": USERS.set_column(1, "age", pa.array(["1", "2", "3"]))})
    # A label that is not read may be of any type.
    words = LOG.set_column(2, "clicked", pa.array(["?", "?", "?"]))
    assert [b.rows for b in plan.over(words, label=False).batches(8)] == [3]


def test_whole_numbers_stand_for_floats_and_only_exactly(tmp_path: Path) -> None:
    plan = job(tmp_path)
    (whole,) = plan.over(LOG.set_column(1, "price", pa.array([1, 2, 3]))).batches(8)
    (floats,) = plan.over(LOG.set_column(1, "price", pa.array([1.0, 2.0, 3.0]))).batches(8)
    assert whole.dense.tobytes() == floats.dense.tobytes()
    with pytest.raises(
        DataError,
        match=r"column 'price' is 9007199254740993 at memory row 1.*cannot be represented exactly as a float64",
    ):
        list(plan.over(LOG.set_column(1, "price", pa.array([1, 2**53 + 1, 3]))).batches(8))


def test_a_null_that_the_plan_has_no_value_for_is_named_by_row_with_advice_for_the_data(tmp_path: Path) -> None:
    plan = job(tmp_path)
    may = LOG.set_column(1, "price", pa.array([1.0, None, 3.0]))
    said = r"column 'price' is null at memory row 1; .* data without nulls.*fill or leave out such rows in this data, or train"
    with pytest.raises(DataError, match=said):
        list(plan.over(may).batches(8))
    plan.save(tmp_path / "p.plan")
    with pytest.raises(DataError, match=said):
        list(cb.Plan.load(tmp_path / "p.plan", views={"log": may}).batches(8))
    # A file that does not say whether it holds nulls, and holds none, is read.
    (tmp_path / "log.csv").write_text("user,price,clicked\n1,1.5,0\n2,2.5,1\n")
    assert [b.dense[:, 1].tolist() for b in plan.over(str(tmp_path / "log.csv")).batches(8)] == [[1.5, 2.5]]


def test_nulls_that_the_plan_fills_are_filled_in_other_data(tmp_path: Path) -> None:
    log = cb.View(LOG, name="log").fill(price=7.0)
    plan = cb.compile(log, cb.FeatureSet(dense={"p": col("price")}), device="cpu")
    may = LOG.set_column(1, "price", pa.array([1.0, None, 3.0]))
    assert [b.dense[:, 0].tolist() for b in plan.over(may).batches(8)] == [[1.0, 7.0, 3.0]]
    plan.save(tmp_path / "p.plan")
    loaded = cb.Plan.load(tmp_path / "p.plan", views={"log": may})
    assert [b.dense[:, 0].tolist() for b in loaded.batches(8)] == [[1.0, 7.0, 3.0]]
    assert loaded.fingerprint == plan.fingerprint  # a model of the plan reads both


def test_views_below_a_joined_view_can_be_given_too() -> None:
    towns = cb.View(pa.table({"town": [1], "size": [10]}), key="town", name="towns").fill(size=0)
    users = cb.View(pa.table({"user": [1], "town": [1]}), key="user", name="users").fill(town=0).join(towns, on="town")
    log = cb.View(pa.table({"user": [1]}), name="log").join(users, on="user")
    plan = cb.compile(log, cb.FeatureSet(dense={"s": col("size").fill(0)}), device="cpu")
    other = plan.over(pa.table({"user": [1]}), views={"towns": pa.table({"town": [1], "size": [99]})})
    assert [b.dense.tolist() for b in other.batches(8)] == [[[99.0]]]
    with pytest.raises(PlanError, match=r"nearest: 'towns'; the joined and merged views are: \['towns', 'users'\]"):
        plan.over(pa.table({"user": [1]}), views={"town": 1})


def test_what_is_shown_of_a_loaded_plan_is_what_was_known_when_it_was_saved(tmp_path: Path) -> None:
    plan = job(tmp_path)
    plan.save(tmp_path / "p.plan")
    shown = plan.explain()
    for name in ("log", "users"):
        (tmp_path / name / "part.parquet").unlink()
    assert load_plan(tmp_path / "p.plan").explain() == shown
    with pytest.raises(SourceError, match="view 'log':"):
        _ = load_plan(tmp_path / "p.plan").rows
