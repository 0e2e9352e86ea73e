"""What a training, a run or a tuning is refused for, in the words that a user reads."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.callbacks import Callback
from ctrbox.errors import DataError, PlanError, SourceError, TrainError, WriteError
from ctrbox.evaluate.trial_verdict import Trial
from ctrbox.files.sealed_json import read_sealed, sealed
from ctrbox.predict.model_from_file import untrained
from ctrbox.predict.weights_folder import read_state, same_weights, shapes_in, tensors_of
from ctrbox.report.read_recorded_files import read_lines, read_run
from ctrbox.sklearn.classifier_folder import classes_of
from ctrbox.train.checkpoint import Held, read_weights
from ctrbox.train.evaluation import watched
from ctrbox.train.importance import PIECE, _pieces
from ctrbox.train.interrupt import Asked, asked_to_end, end_as_asked
from ctrbox.train.look_ahead import _Block
from ctrbox.train.progress_line import Line
from ctrbox.train.sampling import Labels
from ctrbox.train.settings import same_run
from ctrbox.train.tuning import Study, best_of, fresh_table
from tests.train.test_second_day import FAST, log, planned


@pytest.fixture(scope="module")
def plan() -> cb.Plan:
    return planned(log(300))


@pytest.fixture(scope="module")
def folder(plan: cb.Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with rows held back."""
    place = tmp_path_factory.mktemp("finished") / "run"
    fitted(plan, out=place, valid=0.2)
    return place


def model(plan: cb.Plan) -> nn.Module:
    return cb.models.DeepFM(plan.schema, dim=4, hidden=(4,))


def fitted(plan: cb.Plan, table: Any = None, **options: Any) -> cb.Run:
    return cb.Trainer(model(plan), table or cb.MemoryTable(4), threads=1).fit(plan, **{**FAST, **options})


@pytest.fixture(scope="module")
def run(plan: cb.Plan) -> cb.Run:
    """A run without a folder, and without rows held back."""
    return fitted(plan)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda p: cb.Trainer("DeepFM"), "Trainer needs a torch module, got str: cb.models.DeepFM(plan.schema)"),  # type: ignore[arg-type]
        (lambda p: cb.Trainer(model(p)).fit(p.log), "fit needs a plan, as cb.compile returns it, got View"),  # type: ignore[arg-type]
        (
            lambda p: fitted(p, schedule=0.5),
            "schedule must be a function from a step to a factor, such as cb.optim.Cosine, got 0.5",
        ),
        (
            lambda p: fitted(p, {"bid": cb.MemoryTable(4)}),
            "a table is given for field 'bid', which the model does not read",
        ),
        (lambda p: fitted(p, {"user": cb.MemoryTable(4)}), "no table is given for field 'ad'; add one, or {'*': …}"),
        (lambda p: fitted(p, cb.MemoryTable), "a table must be an embedder, such as cb.MemoryTable(dim=16), got"),
        (
            lambda p: fitted(p, monitor="weighted_auc", valid=0.5),
            "needs sample weights; add them to the plan with cb.FeatureSet(weight=…), or use 'auc'",
        ),
    ],
)
def test_a_training_that_cannot_begin(plan: cb.Plan, ask: Callable[[cb.Plan], Any], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        ask(plan)
    assert says in str(caught.value)


def test_fields_that_share_keys_share_an_embedder() -> None:
    sparse = {"user": col("user").key("people"), "ad": col("ad").key("people")}
    shared = cb.compile(cb.View(log(100)), cb.FeatureSet(label=col("clicked"), sparse=sparse), threads=1)
    with pytest.raises(
        PlanError, match="fields 'user' and 'ad' share the keys of space 'people'; give both the same embedder"
    ):
        fitted(shared, {"user": cb.MemoryTable(4), "ad": cb.MemoryTable(4)})
    one = cb.MemoryTable(4)
    fitted(shared, {"user": one, "ad": one})


def test_a_model_whose_config_is_no_json_cannot_be_kept(plan: cb.Plan, tmp_path: Path) -> None:
    mine = model(plan)
    mine.config = {"a": object()}  # type: ignore[assignment]
    with pytest.raises(PlanError, match="config of DeepFM must be plain JSON, so that it can be saved with the run:"):
        cb.Trainer(mine, cb.MemoryTable(4)).fit(plan, out=tmp_path / "run", **FAST)


def test_an_empty_log_has_no_training_rows(plan: cb.Plan) -> None:
    with pytest.raises(TrainError, match=r"there are no training rows, because view '.*' is empty"):
        fitted(planned(log(300).slice(0, 0)), valid=planned(log(300)))


def test_labels_are_asked_for(plan: cb.Plan) -> None:
    bare = cb.compile(cb.View(log(100)), cb.FeatureSet(sparse={"user": col("user")}), threads=1)
    (batch,) = bare.batches(1000)
    with pytest.raises(
        TrainError, match=r"the plan has no label; add one: cb\.FeatureSet\(label=col\('clicked'\), …\)"
    ):
        Labels().add(batch, 0, "log")


def test_less_of_the_watched_figure_is_better() -> None:
    assert watched({"logloss": 0.25}, None) == 0.25
    assert watched({"auc": 0.75}, "auc") == -0.75
    assert watched({"logloss": 0.25, "weighted_logloss": 0.5}, None) == 0.5


def test_a_callback_has_methods(plan: cb.Plan) -> None:
    class Odd(Callback):
        on_step = 5  # type: ignore[assignment]

    with pytest.raises(PlanError, match=r"Odd\.on_step must be a method, got 5"):
        fitted(plan, callbacks=[Odd()])


# ---- a run and its folder


def test_a_run_without_a_folder_says_what_it_lacks(run: cb.Run, folder: Path) -> None:
    assert repr(run) == "Run(DeepFM, auc=nan)"
    loaded = cb.Run.load(folder, views={"memory": log(300)})
    assert repr(loaded) == f"Run(DeepFM, auc={loaded.metrics['auc']:.4f}, {str(folder)!r})"
    with pytest.raises(PlanError, match="this run has no folder; call fit with out='runs/…' to get a report"):
        run.report()
    with pytest.raises(PlanError, match=r"this run kept no rows for validation; pass a log with labels: run.evaluate"):
        run.evaluate()


def copied(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "run")
    return tmp_path / "run"


def test_an_unfinished_run_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    place = copied(folder, tmp_path)
    shutil.rmtree(place / "model")
    with pytest.raises(
        DataError, match="holds an unfinished run: its model is missing; run the training again with the same out="
    ):
        cb.Run.load(place)


def test_a_missing_file_of_weights_is_named(folder: Path, tmp_path: Path) -> None:
    place = copied(folder, tmp_path)
    (place / "model" / "table-0.ctrtable").unlink()
    with pytest.raises(DataError, match=r"model is damaged: table-0\.ctrtable is missing"):
        cb.Run.load(place)


def test_a_config_that_builds_no_model_is_damage(folder: Path, tmp_path: Path) -> None:
    place = copied(folder, tmp_path)
    state = read_sealed(place / "model" / "state.json", "")
    state["config"]["dims"] = 5
    (place / "model" / "state.json").write_text(sealed(state), encoding="utf-8")
    with pytest.raises(DataError, match="model is damaged: DeepFM cannot be built from its config: "):
        cb.Run.load(place, views={"memory": log(300)})


def test_weights_fit_one_model_and_its_tables(plan: cb.Plan, folder: Path) -> None:
    place = folder / "model"
    state, mine = read_state(place), model(plan)
    same_weights(place, mine)
    with pytest.raises(DataError, match="holds 1 tables, but the model reads 2"):
        read_weights(place, state, Held(mine, [cb.MemoryTable(4), cb.MemoryTable(4)]))
    wider = cb.models.DeepFM(plan.schema, dim=4, hidden=(5,))
    with pytest.raises(
        DataError, match=r"holds a different model: weight '.*' is F32 of shape \(.*\), expected F32 of shape"
    ):
        same_weights(place, wider)


def test_a_file_that_is_no_safetensors_is_damage(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "dense.safetensors").write_bytes(b"\0" * 20)
    for read in (tensors_of, lambda path: shapes_in(path.parent)):
        with pytest.raises(DataError, match=r"dense\.safetensors is damaged: "):
            read(tmp_path / "dense.safetensors")


def test_a_model_of_more_parts_than_its_weights_justify(plan: cb.Plan) -> None:
    with pytest.raises(
        DataError, match="describes a DeepFM with more than 1,000 modules and parameters, far more than"
    ):
        untrained("DeepFM", plan.schema, {"dim": 4, "hidden": [1] * 250, "batch_norm": True}, 0, lambda shapes: None)


@pytest.mark.parametrize("text", ['{"a": ' + "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_lines_that_no_run_writes(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + text)
    with pytest.raises(
        DataError, match=r"metrics\.jsonl:2 is damaged: it does not contain what a run writes \(\w+Error\)"
    ):
        list(read_lines(tmp_path / "metrics.jsonl"))


def test_what_is_a_folder_cannot_be_read_as_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises((SourceError, DataError), match=r"metrics\.jsonl"):
        list(read_lines(tmp_path / "metrics.jsonl"))
    place = copied(folder, tmp_path)
    (place / "plan.svg").unlink()
    assert read_run(place).picture is None
    (place / "plan.svg").mkdir()
    with pytest.raises((SourceError, DataError), match=r"plan\.svg"):
        read_run(place)


def test_a_file_that_may_not_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match=r"cannot read .*config\.json: Not a directory"):
        read_sealed(tmp_path / "file" / "config.json", "run folder")


def test_a_run_goes_on_only_with_its_identity() -> None:
    same_run("runs/x", {"a": 1}, {"a": 1})
    with pytest.raises(
        DataError,
        match=r"runs/x has a damaged config\.json, which does not say what the run trains; restore it",
    ):
        same_run("runs/x", None, {"a": 1})


def test_a_run_folder_that_turns_unwritable_is_one_error(plan: cb.Plan, tmp_path: Path) -> None:
    class Break(Callback):
        def on_step(self, event: Any) -> None:
            place = tmp_path / "run" / "metrics.jsonl"
            if event.step == 1:
                place.unlink(missing_ok=True)
                place.mkdir()

    with pytest.raises(WriteError, match=r"cannot write to run folder .*run: Is a directory"):
        fitted(plan, out=tmp_path / "run", valid=0.2, callbacks=[Break()], evaluate_every=1)


def test_a_link_to_nowhere_is_no_run_folder(plan: cb.Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"cannot write run folder .*: Not a directory"):
        fitted(plan, out=tmp_path / "file" / "run")


# ---- classifiers


@pytest.mark.parametrize(
    "described",
    [
        {"dtype": 5, "values": [0, 1]},
        {"dtype": "<c8", "values": [0, 1]},
        {"dtype": "<i8", "values": [0]},
        {"dtype": "<i8", "values": [0, 1, 2]},
    ],
)
def test_saved_classes_are_two(described: dict[str, Any]) -> None:
    assert classes_of({"dtype": "<i8", "values": [3, 5]}).tolist() == [3, 5]
    with pytest.raises(
        DataError, match=r"the saved classes are \[.*\] of type .*; expected two of text, numbers or bools"
    ):
        classes_of(described)


def frame() -> dict[str, Any]:
    rows = log(200)
    return {"slot": rows["id"].to_numpy() % 3, "bid": rows["bid"].to_numpy()}


@pytest.fixture(scope="module")
def classifier() -> cb.Classifier:
    return cb.Classifier("FM", dim=2, epochs=1, threads=1).fit(pa.table(frame()), log(200)["clicked"].to_numpy())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema="zz"), "does not describe the columns of a classifier"),
        (lambda d: d.update(schema=None), "does not describe the columns of a classifier"),
        (lambda d: d.pop("classes"), "does not describe a classifier: KeyError"),
        (lambda d: d.update(importances="x"), "does not describe a classifier: ValueError"),
    ],
)
def test_a_folder_that_describes_no_classifier(
    classifier: cb.Classifier, tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    from ctrbox.sklearn.classifier_folder import FILE

    classifier.save(tmp_path / "saved")
    described = read_sealed(tmp_path / "saved" / FILE, "")
    described.pop("format", None)
    described.pop("seal", None)
    change(described)
    (tmp_path / "saved" / FILE).write_text(sealed(described), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        cb.Classifier.load(tmp_path / "saved")
    assert says in str(caught.value)


def test_a_frame_of_other_types_than_in_fit(classifier: cb.Classifier) -> None:
    with pytest.raises(DataError, match="column 'slot' was int64 in fit and is double now: "):
        classifier.predict(pa.table({**frame(), "slot": [0.5] * 200}))


def test_complex_labels_are_no_classes() -> None:
    with pytest.raises(DataError, match="Complex data not supported: y holds complex numbers; expected two classes"):
        cb.Classifier("FM").fit(pa.table(frame()), np.zeros(200, complex))


# ---- tuning


def test_a_study_is_of_one_metric_in_one_folder(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"metric must be one of .*, got 'loglos'; nearest: 'logloss'"):
        Study(tmp_path / "s", "loglos")
    with pytest.raises(PlanError, match="s holds no study; create one with ctrbox tune"):
        best_of(tmp_path / "s", lambda trial: {})
    Study(tmp_path / "s", "logloss")
    Study(tmp_path / "s", "logloss")
    with pytest.raises(PlanError, match="s holds a study of the metric 'logloss', not 'auc'; choose another folder"):
        Study(tmp_path / "s", "auc")
    with pytest.raises(PlanError, match=r"no trial in .*s ran to completion; add more trials with"):
        best_of(tmp_path / "s", lambda trial: {})


def test_trials_begin_with_empty_tables() -> None:
    table = cb.MemoryTable(2)
    assert fresh_table(None) is None
    assert fresh_table(table) is not table
    both = fresh_table({"a": table, "b": table})
    assert both["a"] is both["b"]
    table.open(cb.embed.embedder.Row(2))
    table.pull(np.array([5]))
    with pytest.raises(
        PlanError, match="the job's table already holds 1 rows, but every trial must start with an empty"
    ):
        fresh_table(table)


# ---- parts


def test_a_trial_holds_its_candidates() -> None:
    usual: dict[str, Any] = {"model": "m", "data": "d", "seeds": (0,), "train_rows": 1, "valid_rows": 1}
    figures: dict[str, Any] = {"aucs": (0.5,), "loglosses": (0.5,), "extract_us": 1.0, "learn_us": 1.0, "seconds": 1.0}
    trial = Trial({"x": SimpleNamespace()}, **usual, **figures)  # type: ignore[dict-item]
    assert "x" in trial
    assert "y" not in trial
    with pytest.raises(PlanError, match=r"'y' was not tried.*; tried: \['x'\]"):
        _ = trial["y"]


def test_batches_that_left_their_file(tmp_path: Path) -> None:
    block = _Block(tmp_path)
    block.add("kept", [np.arange(4)], [np.array([1, 2])])
    (begin, dtype, shape) = block.items[0].arrays[0]
    assert block.get(begin, dtype, shape).tolist() == [0, 1, 2, 3]
    block.file.truncate(begin + 8)
    with pytest.raises(SourceError, match="the file of the batches that were read ahead was truncated"):
        block.get(begin, dtype, shape)


def test_a_batch_is_scored_in_pieces(plan: cb.Plan) -> None:
    (batch,) = plan.batches(300)
    for rows, sizes in ((PIECE, [PIECE]), (PIECE + 1, [PIECE, 1]), (2 * PIECE, [PIECE, PIECE])):
        taken = batch.take(np.arange(rows) % 300)
        pieces = _pieces(taken)
        assert [piece.rows for piece in pieces] == sizes
        assert np.concatenate([piece.dense for piece in pieces]).tobytes() == taken.dense.tobytes()


def test_a_signal_is_noted_and_then_acted_upon() -> None:
    end_as_asked(Asked())
    met: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: met.append(number))
    try:
        with asked_to_end() as asked:
            signal.raise_signal(signal.SIGINT)
            assert (asked.by, met) == (signal.SIGINT, [])
        with pytest.raises(KeyboardInterrupt):  # a handler that returns does not call the end off
            end_as_asked(asked)
        assert met == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_line_of_progress_begins_once_and_can_be_ended_twice(capsys: pytest.CaptureFixture[str]) -> None:
    line = Line()
    assert line.bars.console.stderr
    line.end()
    progress: Any = SimpleNamespace(rows_per_second=1234.0, shown="reading", loss=0.25, share=0.5)
    for _ in range(2):
        line.see(progress)
    assert len(line.bars.tasks) == 1
    assert line.bars.tasks[0].completed == 0.5
    assert line.bars.tasks[0].fields["rate"] == "1,234 rows/s"
    assert line.bars.live.is_started
    line.end()
    line.end()
    assert not line.bars.live.is_started
    line.resumed(1000, 2000)
    line.evaluated({"auc": 0.75})
    told = capsys.readouterr().err
    assert "continuing after step 1,000 (2,000 rows)" in told
    assert "validation  AUC 0.7500" in told
