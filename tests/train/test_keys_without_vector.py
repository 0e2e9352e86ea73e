"""Model Servers whose keys are not in their file, schedules that reach every embedder, settings that would do nothing."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.vectors import count_keys_without_vector
from ctrbox.errors import DataError, PlanError, TrainError
from ctrbox.optimizers.of_dense_weights import dense_optimizer
from ctrbox.report.write_report import write_report
from ctrbox.train.settings import OF_THE_TRAINER
from tests.train import worlds
from tests.train.test_model_server_training import FAST, ITEMS, WIDTH, Visual, rows, server, trained
from tests.train.test_model_server_training import plan as plan


def file_of(path: Path, keys: Any, of: str | cb.types.Expr, count: int = ITEMS) -> cb.tables.VectorFile:
    vectors = rows()[1]
    return cb.tables.write_vectors(path, {"ad": keys[:count], "v": vectors[:count]}, key=of, vector="v")


def test_a_file_written_with_text_ids_is_refused_by_a_field_of_numbers(plan: cb.Plan, tmp_path: Path) -> None:
    texts = np.array([str(k) for k in range(ITEMS)], object)
    file = file_of(tmp_path / "text.ctrvec", texts, col("ad").key(space="image"))
    one = server(file)
    with pytest.raises(DataError) as caught:
        trained(plan, one)
    told = str(caught.value)
    assert f"has a row in {file.path}, which holds {ITEMS} keys" in told
    assert f"a key of the file is {int(file.keys[0])}" in told
    assert "Field 'image' is col('ad').key(space='image'), keys of int values" in told
    assert "the number 7 and the text '7' have different keys" in told
    assert "cast('str')" in told
    assert one.misses.batches <= count_keys_without_vector.BATCHES


def test_keys_that_were_not_hashed_are_named_as_such(plan: cb.Plan, tmp_path: Path) -> None:
    file = file_of(tmp_path / "plain.ctrvec", np.arange(1, ITEMS + 1), "ad")
    with pytest.raises(DataError, match="small plain numbers; they were not hashed"):
        trained(plan, server(file))


def test_a_log_of_few_batches_is_refused_at_its_end(plan: cb.Plan, tmp_path: Path) -> None:
    file = file_of(tmp_path / "other.ctrvec", np.arange(ITEMS), col("ad").key(space="other"))
    with pytest.raises(DataError, match="in the first 2 batches"):
        trained(plan, server(file), batch_size=1000)


def test_a_large_share_of_misses_is_warned_of_once_and_recorded(plan: cb.Plan, tmp_path: Path) -> None:
    file = file_of(tmp_path / "few.ctrvec", np.arange(ITEMS), col("ad").key(space="image"), count=10)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        run = trained(plan, server(file), epochs=2, out=tmp_path / "run")
    told = [str(w.message) for w in met if "have no row" in str(w.message)]
    assert len(told) == 1
    (found,) = run.summary["servers"]
    assert found["fields"] == ["image", "seen"]
    assert found["missing_share"] == found["missing"] / found["keys"] > count_keys_without_vector.WARNED_SHARE
    assert told[0].startswith(f"{found['missing_share']:.0%} of the keys of 'image', 'seen' have no row in {file.path}")
    write_report(tmp_path / "run")


def test_few_misses_are_counted_and_not_warned_of(plan: cb.Plan, tmp_path: Path) -> None:
    file = file_of(tmp_path / "images.ctrvec", np.arange(ITEMS), col("ad").key(space="image"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = trained(plan, server(file))
    assert 0 < run.summary["servers"][0]["missing_share"] < count_keys_without_vector.WARNED_SHARE


class Own:
    """An embedder of one's own over a table, with the methods of the contract alone."""

    traits = cb.tables.Traits()

    def __init__(self) -> None:
        self.table = cb.MemoryTable(4)

    def __getattr__(self, name: str) -> Any:
        if name == "scale_lr":
            raise AttributeError(name)
        return getattr(self.table, name)

    def __len__(self) -> int:
        return len(self.table)


class Following(Own):
    traits = cb.tables.Traits(scales_lr=True)

    def scale_lr(self, factor: float) -> None:
        self.table.scale_lr(factor)


def test_a_schedule_reaches_an_embedder_of_ones_own_or_is_refused(plan: cb.Plan) -> None:
    def fit(embedder: Any, **options: Any) -> Any:
        torch.manual_seed(0)
        cb.Trainer(cb.models.DeepFM(plan.schema, dim=4), embedder).fit(plan, **{**FAST, **options})
        return embedder

    with pytest.raises(PlanError, match=r"Own cannot follow it; add a method scale_lr"):
        fit(Own(), schedule=cb.optim.Warmup(20))
    fit(Own())  # without a schedule nothing is missing
    mine, theirs = fit(Following(), schedule=cb.optim.Warmup(20)), fit(cb.MemoryTable(4), schedule=cb.optim.Warmup(20))
    assert np.array_equal(mine.table.export()[1], theirs.export()[1])


@pytest.mark.parametrize("factor", [float("nan"), -1.0, "half"])
def test_a_schedule_that_gives_no_factor_is_refused_with_the_step(plan: cb.Plan, factor: Any) -> None:
    with pytest.raises(TrainError, match="at step 3; expected a finite number, 0 or more"):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, schedule=lambda step: factor if step == 3 else 1.0, **FAST)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patience": 2, "valid": 0.0}, "patience=2 needs validation rows"),
        ({"evaluate_every": 5, "valid": 0.0}, "evaluate_every=5 needs validation rows"),
        ({"by": {"user": col("user")}}, "requires explain=True, or a run folder"),
        ({"by": {"user": col("user")}, "explain": True, "valid": 0.0}, "requires validation rows"),
        ({"checkpoint_steps": 5}, "checkpoint_steps= needs a run folder"),
        ({"look_ahead": 8}, "look_ahead= needs a cb.SparseTable"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(plan: cb.Plan, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, **{**FAST, **options})


def test_gauc_cannot_be_monitored_without_groups() -> None:
    view = cb.View(rows()[0].drop_columns(["history"]), key="id")
    plan = cb.compile(view, cb.FeatureSet(label=col("clicked"), sparse={"user": col("user")}), threads=1)
    with pytest.raises(PlanError, match="monitor='gauc' needs groups"):
        cb.Trainer(cb.models.LR(plan.schema)).fit(plan, monitor="gauc", patience=1, **FAST)


@pytest.mark.parametrize("kind", [cb.optim.SGD, cb.Adagrad, cb.optim.Adam])
def test_weight_decay_of_the_dense_optimizer_is_honored(kind: Any) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    step = dense_optimizer(kind(lr=0.1, l2=0.5))([weight])
    weight.grad = torch.zeros(3)
    step.step()
    assert (weight < 1).all()


def test_adaptive_l2_without_tables_is_refused(tmp_path: Path) -> None:
    view = cb.View(rows()[0].drop_columns(["history"]), key="id")
    sparse = {"image": col("ad").key(space="image")}
    plan = cb.compile(view, cb.FeatureSet(label=col("clicked"), sparse=sparse), threads=1)
    file = file_of(tmp_path / "images.ctrvec", np.arange(ITEMS), col("ad").key(space="image"))
    one = cb.tables.ModelServer(file, cb.tables.ImageEmbedding(WIDTH, (6,), 4))
    model = cb.models.EmbeddingMLP(plan.schema, dim=4)
    refused = "adaptive_l2= penalizes the rows of tables whose optimizer is not dense, but this model reads no such table; remove"
    with pytest.raises(PlanError, match=refused):
        cb.Trainer(model, one).fit(plan, adaptive_l2=0.1, **FAST)


def test_every_argument_of_the_trainer_is_told_apart_from_a_setting() -> None:
    assert list(inspect.signature(cb.Trainer).parameters)[1:] == list(OF_THE_TRAINER)


def test_rows_that_a_filter_drops_are_counted_in_a_warning_of_predict() -> None:
    rows = worlds.checkerboard(400)
    log = cb.View(rows, key="id").fill(tags=[]).filter(col("device") == "ios")
    plan = cb.compile(log, worlds.features(), threads=1)
    run = cb.Trainer(cb.models.LR(plan.schema), threads=1).fit(plan, batch_size=100)
    few = rows.slice(0, 20)
    dropped = sum(device != "ios" for device in few.column("device").to_pylist())
    assert 0 < dropped < 20
    with pytest.warns(UserWarning, match=rf"filters drop {dropped} of 20 rows; their predictions are NaN"):
        p = run.predict(few)
    assert int(np.isnan(p).sum()) == dropped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.predict(few, warn=False)
        run.predict(few.filter(pc.equal(few.column("device"), "ios")))


def test_a_run_whose_vector_file_has_none_of_its_keys_is_refused_after_training(plan: cb.Plan, tmp_path: Path) -> None:
    right = file_of(tmp_path / "right.ctrvec", np.arange(ITEMS), col("ad").key(space="image"))
    run = trained(plan, server(right), out=tmp_path / "run")
    texts = np.array([str(k) for k in range(ITEMS)], object)
    other = file_of(tmp_path / "text.ctrvec", texts, col("ad").key(space="image"))
    loaded = cb.Run.load(tmp_path / "run", model=Visual(plan.schema), plan=plan, servers={"image": server(other)})
    for use in (lambda: loaded.evaluate(rows()[0]), lambda: list(loaded.predictions(rows()[0]))):
        with pytest.raises(
            DataError, match=f"keys of field 'image' has a row in {other.path}, which holds {ITEMS} keys"
        ):
            use()
    assert run.evaluate(rows()[0])["rows"] == rows()[0].num_rows
    plain = file_of(tmp_path / "plain.ctrvec", np.arange(1, ITEMS + 1), "ad")
    with pytest.raises(DataError, match=r"small plain numbers; they were not hashed\. The first is 1"):
        cb.Run.load(tmp_path / "run", model=Visual(plan.schema), plan=plan, servers={"image": server(plain)})


def test_predictions_warn_of_a_field_of_which_no_key_was_learned() -> None:
    table = worlds.checkerboard(600)
    plan = worlds.plan_of(table)
    run = cb.Trainer(cb.models.LR(plan.schema), threads=1).fit(plan, batch_size=100)
    moved = table.set_column(table.column_names.index("ad"), "ad", pc.add(table.column("ad"), 1000))
    words = "keys of field 'ad' was learned by this model"
    with pytest.warns(UserWarning, match=words):
        list(run.predictions(moved))
    with pytest.warns(UserWarning, match=words):
        run.evaluate(moved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.evaluate(table.slice(1))  # the whole table is the training log, which has a warning of its own
        list(run.predictions(table, batch_size=20))


def test_a_pre_rank_whose_candidates_are_all_unknown_says_so_once(tmp_path: Path) -> None:
    file = file_of(tmp_path / "ads.ctrvec", np.arange(1, ITEMS + 1), col("ad").key(space="ad"))
    rank, user = cb.tables.PreRank(file), np.ones(file.width, np.float32)
    rank.top(user, np.arange(1, 1000))
    with pytest.warns(
        UserWarning, match="none of the first 1,998 candidates has a vector in .*; a candidate is 1, a key"
    ):
        rank.top(user, np.arange(1, 1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank.top(user, np.arange(1, 1000))
        rank.top(user, file.keys)
    assert (rank.found, rank.missing) == (len(file), 3 * 999)
