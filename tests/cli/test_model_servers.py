"""Verbs over a run with a Model Server, whose vectors are in no file of the run's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import ctrbox as cb
from ctrbox.cli.main import app
from ctrbox.cli.terminal import Mistake
from ctrbox.embed.vectors.vector_file import ROWS_AT
from ctrbox.serve.model_folder import ModelFolder
from ctrbox.serve.refused_request import Refused
from ctrbox.serve.request_queue import ScoringQueue
from ctrbox.serve.served_models import open_served
from ctrbox.serve.service import Limits, Service
from ctrbox.views.allowed_paths import VARIABLE
from tests.serve.image_worlds import WIDTH, ImageWorld, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageWorld]:
    folder = tmp_path_factory.mktemp("images")
    world = make_world(folder)
    before = os.environ.get(VARIABLE)  # tests of serving set it for the whole process
    os.environ[VARIABLE] = str(folder)  # the runs of these tests lie elsewhere
    yield world
    del os.environ[VARIABLE]
    if before is not None:
        os.environ[VARIABLE] = before


@pytest.fixture(scope="module")
def run(world: ImageWorld, tmp_path_factory: pytest.TempPathFactory) -> cb.Run:
    server = cb.tables.ModelServer(world.file, cb.tables.ImageEmbedding(WIDTH, (8,), 12))
    model = cb.models.DICM(world.plan.schema, 12, ad_image="ad_image", behavior="behavior", query="ad", hidden=(8,))
    embedders = {"ad_image": server, "behavior": server, "*": cb.MemoryTable(12, threads=1)}
    out = tmp_path_factory.mktemp("runs") / "run"
    return cb.Trainer(model, embedders, threads=1).fit(world.plan, batch_size=500, epochs=1, limit=1000, out=out)


def test_with_a_vector_file_they_give_what_the_run_gives(world: ImageWorld, run: cb.Run, tmp_path: Path) -> None:
    vectors = ["--server", f"behavior={world.file}"]
    measured = CliRunner().invoke(app, ["evaluate", str(run.folder), *vectors, "--json"])
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout)["auc"] == pytest.approx(run.evaluate()["auc"])

    log, out = str(world.place / "data" / "impressions"), tmp_path / "p.parquet"
    done = CliRunner().invoke(app, ["predict", str(run.folder), log, "-o", str(out), *vectors])
    assert done.exit_code == 0, done.output
    expected = np.concatenate(list(run.predictions(log)))
    assert np.allclose(pq.read_table(out)["probability"].to_numpy(), expected)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], r"pass one, with its data: --server ad_image=PATH"),
        (
            ["--server", "ad_imag=x.ctrvec"],
            r"no Model Server for 'ad_imag', .* of 'ad_image', 'behavior'; nearest: 'ad_image'",
        ),
        (["--server", "user=x.ctrvec"], r"no Model Server for 'user', it has those of 'ad_image', 'behavior'$"),
        (["--server", "ad_image=a", "--server", "ad_image=b"], r"ad_image=… is given twice: a and b"),
        (["--server", "ad_image=a", "--server", "behavior=a"], r"share one Model Server in .* only for 'ad_image'"),
        (["--server", "ad_image"], r"expected NAME=PATH, such as --server ad_image=images\.ctrvec"),
        (["--server", "ad_image=absent.ctrvec"], r"absent\.ctrvec"),
    ],
)
def test_what_is_missing_or_wrong_is_named(run: cb.Run, tmp_path: Path, given: list[str], told: str) -> None:
    out = tmp_path / "p.parquet"
    for verb in (["evaluate", str(run.folder)], ["predict", str(run.folder), "x", "-o", str(out)]):
        refused = CliRunner().invoke(app, [*verb, *given])
        assert refused.exit_code != 0
        with pytest.raises((cb.errors.CtrboxError, Mistake), match=told):
            raise refused.exception or AssertionError(refused.output)
    assert not out.exists()


def test_a_file_that_is_no_file_of_these_objects(world: ImageWorld, run: cb.Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cb.tables.write_vectors(tmp_path / "narrow", pa.table({"k": [1], "v": [[1.0, 2.0]]}), key="k", vector="v")
    for name, told in (
        ("pipe", "pipe is not a vector file: it is not a regular file"),
        ("narrow", "narrow, which have 2 float32 each"),
    ):
        refused = CliRunner().invoke(app, ["evaluate", str(run.folder), "--server", f"ad_image={tmp_path / name}"])
        with pytest.raises(cb.errors.CtrboxError, match=told):
            raise refused.exception or AssertionError(refused.output)
    cb.tables.write_vectors(tmp_path / "others", pa.table({"k": [1], "v": [[1.0] * WIDTH]}), key="k", vector="v")
    measured = CliRunner().invoke(app, ["evaluate", str(run.folder), "--server", f"ad_image={tmp_path / 'others'}"])
    assert measured.exit_code == 0
    assert f"warning: none of the keys of field 'ad_image' has a row in {tmp_path / 'others'}" in measured.stderr


def test_a_run_without_a_model_server_says_so(world: ImageWorld, tmp_path: Path) -> None:
    model = cb.models.LR(world.plan.schema)
    plain = cb.Trainer(model, threads=1).fit(world.plan, batch_size=500, epochs=1, limit=500, out=tmp_path / "plain")
    refused = CliRunner().invoke(app, ["evaluate", str(plain.folder), "--server", f"ad_image={world.file}"])
    with pytest.raises(cb.errors.CtrboxError, match=r"no Model Server for 'ad_image', it has none$"):
        raise refused.exception or AssertionError(refused.output)


def test_what_cannot_be_written_is_not_blamed_on_the_log(world: ImageWorld, run: cb.Run) -> None:
    log = str(world.place / "data" / "impressions")
    refused = CliRunner().invoke(
        app, ["predict", str(run.folder), log, "-o", "/proc/x.parquet", "--server", f"ad_image={world.file}"]
    )
    with pytest.raises((cb.errors.CtrboxError, Mistake), match=r"cannot write /proc/x\.parquet"):
        raise refused.exception or AssertionError(refused.output)


def test_a_whole_run_is_published_or_nothing(world: ImageWorld, run: cb.Run, tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["publish", "push", str(tmp_path / "new"), str(run.folder)])
    with pytest.raises((cb.errors.CtrboxError, Mistake), match=r"with its data: --server ad_image=PATH"):
        raise refused.exception or AssertionError(refused.output)
    assert not (tmp_path / "new").exists()


def test_a_row_damaged_while_it_is_served_is_no_mistake_of_the_client(
    world: ImageWorld, run: cb.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = tmp_path / "copied.ctrvec"
    copied.write_bytes(world.file.read_bytes())
    assert run.folder is not None
    served = open_served(ModelFolder.open(run.folder), servers={"ad_image": str(copied)})
    service = Service(served, "model", ScoringQueue(0, 1, 1.0), Limits())
    request = served.reader.from_json(orjson.dumps(world.request(0, 40)[0]))
    with copied.open("r+b") as file:
        file.seek(ROWS_AT)
        file.write(b"\x01" * (4 * WIDTH * len(cb.tables.VectorFile(world.file))))
    with pytest.raises(Refused, match="the server cannot read a file of the model; its log has the details") as met:
        service.score(request)
    assert met.value.status == 500
    assert "copied.ctrvec was modified while it was open" in caplog.text  # found before any row of it is read
