"""A run evaluates and predicts another log with histories that go on from a saved state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer

import ctrbox as cb
from ctrbox.cli.after_training import evaluate, predict
from ctrbox.cli.terminal import Mistake
from ctrbox.errors import DataError, PlanError
from tests.engines.history.test_histories import clicks
from tests.engines.history.test_past_plans import features, with_past

FIRST = 1_200


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, the log of the next day, and the state at its beginning."""
    place = tmp_path_factory.mktemp("run")
    pq.write_table(clicks(), place / "log.parquet")
    pq.write_table(clicks().slice(FIRST), place / "tomorrow.parquet")
    plan = cb.compile(with_past(cb.View(place / "log.parquet", name="log")), features(), device="cpu", threads=1)
    model = cb.models.DeepFM(plan.schema, dim=4, hidden=(8,))
    cb.Trainer(model, cb.MemoryTable(4)).fit(plan, batch_size=500, epochs=1, out=place / "run")
    state = plan.histories()
    state.observe(clicks().slice(0, FIRST))
    state.save(place / "my.past")
    return place


def test_predictions_go_on_from_a_saved_state(place: Path) -> None:
    run = cb.Run.load(place / "run", allow_views=[str(place)])
    whole = np.concatenate(list(run.predictions(clicks())))[FIRST:]
    tomorrow = place / "tomorrow.parquet"
    assert np.concatenate(list(run.predictions(tomorrow, histories=place / "my.past"))).tolist() == whole.tolist()
    assert np.concatenate(list(run.predictions(tomorrow))).tolist() != whole.tolist()
    found = run.evaluate(tomorrow, histories=place / "my.past")
    assert found != run.evaluate(tomorrow)
    for data, met in ((None, "held back"), (run.plan, "the data is a plan")):
        with pytest.raises(PlanError, match=met):
            run.evaluate(data, histories=place / "my.past")
    (place / "damaged.my.past").write_bytes((place / "my.past").read_bytes()[:-9])
    with pytest.raises(DataError, match=r"damaged\.my\.past is damaged"):
        run.evaluate(tomorrow, histories=place / "damaged.my.past")


def test_the_commands_take_a_state_or_say_that_histories_begin_empty(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRBOX_ALLOW_VIEWS", str(place))
    run, tomorrow, out = str(place / "run"), str(place / "tomorrow.parquet"), str(place / "p.parquet")
    predict(run, tomorrow, out, state=place / "my.past")
    assert "begin empty" not in capsys.readouterr().err
    loaded = cb.Run.load(run, allow_views=[str(place)])
    expected = np.concatenate(list(loaded.predictions(tomorrow, histories=place / "my.past")))
    assert pq.read_table(out)["probability"].to_pylist() == expected.astype(float).tolist()
    with pytest.warns(UserWarning, match=r"begin empty at its first row.*--state FILE"):
        predict(run, tomorrow, out)
    evaluate(run, tomorrow, state=place / "my.past", as_json=True)
    assert f'"rows": {2_000 - FIRST}' in capsys.readouterr().out
    with pytest.raises(
        (Mistake, typer.Exit),
        match=r"--state needs DATA: FILE holds the earlier events from which the histories of the log DATA continue. "
        r"Use: ctrbox evaluate RUN DATA --state FILE",
    ):
        evaluate(run, None, state=place / "my.past")
