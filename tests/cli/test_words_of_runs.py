"""Parts of verbs that read runs and publish them, without a run: keys beside predictions, and errors in words of the options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctrbox.cli import after_training as learning
from ctrbox.cli import open_runs
from ctrbox.cli import publish as publishing
from ctrbox.cli.open_runs import asking_for_the_job
from ctrbox.cli.terminal import Mistake
from ctrbox.errors import CtrboxError, DataError, PlanError
from ctrbox.publish.weights_of_models import CLICK_MODEL, DEEP_FFM

OWN: Any = SimpleNamespace(path=Path("job.py"))


@pytest.mark.parametrize(
    ("own", "error", "told"),
    [
        (
            None,
            PlanError("its model is Mine; use cb.Run.load(…, model=Mine(…))"),
            "its model is Mine; name the job that has it: --job JOB.PY",
        ),
        (
            None,
            PlanError("it needs an operator; pass allow_operators=True"),
            "it needs an operator; name the job that has it: --job JOB.PY",
        ),
        (
            None,
            PlanError("its model is Mine; open(…, model=Mine(…))"),
            "its model is Mine; name the job that has it: --job JOB.PY",
        ),
        (
            None,
            DataError("its model is Mine; open(…, model=Mine(…))"),
            "its model is Mine; name the job that has it: --job JOB.PY",
        ),
        (None, PlanError("no such column"), None),
        (None, DataError("a fingerprint differs"), None),
        (
            OWN,
            PlanError("the plan uses a:b, and loading it needs allow_operators=True"),
            "job.py is not the job of this run: the plan uses a:b, which this job does not define",
        ),
        (OWN, PlanError("its model is Mine; open(…, model=Mine(…))"), None),
        (OWN, DataError("its model is Mine; open(…, model=Mine(…))"), None),
        (
            OWN,
            DataError("the fingerprint differs"),
            "job.py is not the job of this run: the fingerprint differs",
        ),
        (OWN, DataError("damaged"), None),
    ],
)
def test_what_a_run_lacks_is_asked_for_by_the_job_that_has_it(own: Any, error: CtrboxError, told: str | None) -> None:
    with pytest.raises((Mistake, CtrboxError)) as met, asking_for_the_job(own):
        raise error
    if told is None:
        assert met.value is error
    else:
        assert isinstance(met.value, Mistake)
        assert str(met.value) == told


def run_of(chunks: list[int], parts: list[int], key: tuple[str, ...] = ("id",)) -> Any:
    """A run whose keys come in these chunks and whose predictions come in these parts."""
    closed: list[bool] = []

    def columns(names: Any) -> Iterator[pa.Table]:
        begin = 0
        try:
            for size in chunks:
                yield pa.table({name: pa.array(range(begin, begin + size), pa.int64()) for name in names})
                begin += size
        finally:
            closed.append(True)

    def predictions(data: str, histories: Any = None) -> Iterator[np.ndarray]:
        begin = 0
        for size in parts:
            yield np.arange(begin, begin + size) / 100
            begin += size

    schema = pa.schema([("id", pa.int64()), ("p", pa.float32())])
    log = SimpleNamespace(key=key, source=SimpleNamespace(schema=schema))
    over = lambda data, label, histories: SimpleNamespace(columns=columns)
    return SimpleNamespace(
        plan=SimpleNamespace(log=log, over=over, schema=SimpleNamespace(tasks=())),
        predictions=predictions,
        closed=closed,
    )


@pytest.mark.parametrize(
    ("chunks", "parts"),
    [
        ([6], [2, 2, 2]),
        ([3, 3], [2, 2, 2]),
        ([1, 2, 3], [4, 2]),
        ([2, 2, 2], [6]),
        ([3, 3], [3, 3]),
        ([0, 4, 2], [1, 5]),
    ],
)
def test_keys_stand_beside_their_predictions_whatever_the_sizes_of_parts(chunks: list[int], parts: list[int]) -> None:
    run = run_of(chunks, parts)
    found = list(learning.predictions(run, "data"))
    assert [part.num_rows for part in found] == parts
    whole = pa.Table.from_batches(found).to_pydict()
    assert whole == {"id": list(range(6)), "probability": [n / 100 for n in range(6)]}
    assert run.closed == [True]


def test_without_a_key_probabilities_stand_alone_and_without_rows_columns_do() -> None:
    run = run_of([], [2, 1], key=())
    assert [part.to_pydict() for part in learning.predictions(run, "data")] == [
        {"probability": [0.0, 0.01]},
        {"probability": [0.02]},
    ]
    empty = learning.Columns(run_of([], [])).of(None, None)
    assert (empty.num_rows, empty.schema.names) == (0, ["id", "probability"])
    assert empty.schema.field("id").type == pa.int64()


# ---- publishing


def test_columns_of_a_context_are_named_with_commas() -> None:
    assert publishing.names_in("user_id, query,,ts ,") == ("user_id", "query", "ts")
    assert publishing.names_in("") == ()


def test_a_version_is_told_with_its_patch(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "asdict", vars)
    for patch, told in ((0, ""), (1234, ", a patch of 1,234")):
        version = SimpleNamespace(number=7, bytes=5000, patch_bytes=patch)
        publishing.told(Path("model"), version, patch > 0)
        said = capsys.readouterr()
        assert said.err.splitlines()[0] == f"version 7 of model is current: 5,000 bytes{told}"
        assert bool(said.out) == (patch > 0)


@pytest.mark.parametrize(
    ("is_run", "servers", "job", "current", "tables", "loads"),
    [
        (True, [], None, None, False, False),
        (True, [], None, DEEP_FFM, False, False),
        (True, [], None, CLICK_MODEL, False, True),  # a folder that holds whole runs
        (True, [], None, None, True, True),  # a run that has Model Servers
        (True, ["image=a.ctrvec"], None, None, False, True),
        (True, [], Path("job.py"), None, False, True),
        (False, [], None, CLICK_MODEL, False, False),
        (
            False,
            ["image=a.ctrvec"],
            None,
            None,
            False,
            "--server can be used only with a run folder, but MODEL is not a run folder",
        ),
        (
            False,
            [],
            Path("job.py"),
            None,
            False,
            "--job can be used only with a run folder, but MODEL is not one; remove --job",
        ),
    ],
)
def test_a_run_is_published_whole_where_it_must_be(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_run: bool,
    servers: list[str],
    job: Path | None,
    current: str | None,
    tables: bool,
    loads: bool | str,
) -> None:
    if is_run:
        (tmp_path / "config.json").touch()
    monkeypatch.setattr(publishing, "load_run", lambda model, job, server: ("run", server))
    monkeypatch.setattr("ctrbox.predict.read_run_folder.server_tables", lambda model: tables)
    published = SimpleNamespace(current=None if current is None else SimpleNamespace(kind=current))
    if isinstance(loads, str):
        with pytest.raises(Mistake) as met:
            publishing.whole(published, tmp_path, servers, job)
        assert str(met.value) == loads.replace("MODEL", str(tmp_path))
        return
    found = publishing.whole(published, tmp_path, servers, job)
    assert found == (("run", servers) if loads else tmp_path)


def test_a_file_that_is_not_there_is_told_so(tmp_path: Path) -> None:
    published = SimpleNamespace(current=None)
    with pytest.raises(Mistake, match="--server can be used only with a run folder, but there is no "):
        publishing.whole(published, tmp_path / "none", ["image=a.ctrvec"])


def test_a_plan_is_known_by_how_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "p"
    assert not open_runs.is_plan(path)
    for content, expected in ((b"CTRBOXPL", True), (b"CTRBOXPLmore", True), (b"CTRBOXP", False), (b"", False)):
        path.write_bytes(content)
        assert open_runs.is_plan(path) is expected
    assert not open_runs.is_plan(tmp_path)
    with pytest.raises(Mistake, match="is a folder; expected a job file"):
        open_runs.plan_at(tmp_path)


def test_a_run_folder_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Mistake, match=r"^there is no run folder runs/x$"):
        open_runs.load_run(Path("runs/x"))
    for n in range(7):
        (tmp_path / "runs" / f"r{n}").mkdir(parents=True)
        (tmp_path / "runs" / f"r{n}" / "config.json").touch()
    with pytest.raises(Mistake, match=r"; this folder has: runs/r0, runs/r1, runs/r2, runs/r3, runs/r4$"):
        open_runs.load_run(Path("runs/x"))


@pytest.mark.parametrize(("keys", "computed", "told"), [(0, 0, False), (5, 0, True), (5, 1, False)])
def test_a_file_of_other_objects_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, keys: int, computed: int, told: bool
) -> None:
    class Server:
        data = SimpleNamespace(path="images.ctrvec")

        def stats(self) -> dict[str, int]:
            return {"keys": keys, "computed": computed}

    monkeypatch.setattr("ctrbox.embed.vectors.model_server.ModelServer", Server)
    sources = [SimpleNamespace(embedder=Server(), fields=["image"]), SimpleNamespace(embedder=object(), fields=["ad"])]
    open_runs.tell_of_servers(SimpleNamespace(learner=SimpleNamespace(sources=sources)))
    said = (
        "warning: none of the keys of field 'image' has a row in images.ctrvec, so "
        "the model used zero vectors for all of them\n"
    )
    assert capsys.readouterr().err == (said if told else "")
