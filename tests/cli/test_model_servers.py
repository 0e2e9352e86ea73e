"""evaluate and predict of a run with a Model Server, whose vectors are in no file of the run's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import ctrbox as cb
from ctrbox.cli import app
from ctrbox.terminal import Mistake
from tests.serve.image_worlds import WIDTH, ImageWorld, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ImageWorld:
    return make_world(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def run(world: ImageWorld, tmp_path_factory: pytest.TempPathFactory) -> cb.Run:
    server = cb.ModelServer(world.file, cb.ImageEmbedding(WIDTH, (8,), 12))
    model = cb.models.DICM(world.plan.schema, 12, ad_image="ad_image", behaviour="behaviour", query="ad", hidden=(8,))
    embedders = {"ad_image": server, "behaviour": server, "*": cb.MemoryTable(12, threads=1)}
    out = tmp_path_factory.mktemp("runs") / "run"
    return cb.Trainer(model, embedders, threads=1).fit(world.plan, batch_size=500, epochs=1, limit=1000, out=out)


def test_with_a_vector_file_they_give_what_the_run_gives(world: ImageWorld, run: cb.Run, tmp_path: Path) -> None:
    vectors = ["--server", f"behaviour={world.file}"]
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
        ([], r"give one, with its data: --server ad_image=PATH"),
        (["--server", "ad_imag=x.ctrvec"], r"no vectors of 'ad_imag' .*nearest: 'ad_image'"),
        (["--server", "user=x.ctrvec"], r"no vectors of 'user'"),
        (["--server", "ad_image"], r"expected NAME=PATH, such as --server ad_image=images\.ctrvec"),
        (["--server", "ad_image=absent.ctrvec"], r"absent\.ctrvec"),
    ],
)
def test_what_is_missing_or_wrong_is_named(run: cb.Run, tmp_path: Path, given: list[str], told: str) -> None:
    out = tmp_path / "p.parquet"
    for verb in (["evaluate", str(run.folder)], ["predict", str(run.folder), "x", "-o", str(out)]):
        refused = CliRunner().invoke(app, [*verb, *given])
        assert refused.exit_code != 0
        with pytest.raises((cb.CtrboxError, Mistake), match=told):
            raise refused.exception or AssertionError(refused.output)
    assert not out.exists()
