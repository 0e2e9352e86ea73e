"""A model stores what the keys of each field are hashes of, and loaders compare this with the plan."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.key_kinds import joined, mismatch
from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.publish.versions import Published
from ctrbox.publish.weight_file import read_weights, write_weights
from ctrbox.serve.model_folder import create

ADS = pa.table({"ad": [1, 2], "title": ["red shoe", "blue hat"]})
LOG = {
    "id": [1, 2, 3, 4],
    "user": [7, 7, 8, 9],
    "query": ["red", "hat", "", "shoe"],
    "ad": [1, 2, 1, 2],
    "clicked": [1, 1, 0, 0],
    "price": [0.5, 1.0, 2.0, 0.25],
    "shown": [True, False, True, True],
}
KINDS = {
    "user": "int",
    "query": "string",
    "title": "string",
    "shared": "plan",
    "cross": "plan",
    "shown": "plan",
    "number": "plan",
    "price": "dense",
}


def plan_over(user: cb.Expr | None = None) -> cb.Plan:
    ads = cb.View(ADS, key="ad", name="ads").fill(title="")
    log = cb.View(pa.table(LOG), key="id", name="log").join(ads, on="ad")
    features = cb.FeatureSet(
        label=col("clicked"),
        sparse={
            "user": col("user").key() if user is None else user,
            "query": col("query").key(),
            "title": col("title").split(" ").key(),
            "shared": col("user").key(space="user"),
            "cross": cb.cross("user", "query"),
            "shown": col("shown").key(),
            "number": col("ad").as_key(),
        },
        dense={"price": col("price")},
    )
    return cb.compile(log, features, device="cpu", threads=1)


def engine_over(plan: cb.Plan) -> cb.DeepFFM:
    engine = cb.DeepFFM(plan.schema, context=plan.features_of(["user"]), k=2, hidden=(3,), bits=8)
    engine.learn(plan)
    return engine


def test_a_plan_knows_what_its_keys_are_hashes_of() -> None:
    assert plan_over().schema.key_kinds == KINDS


def test_a_model_keeps_the_kinds_in_every_file(tmp_path: Path) -> None:
    plan = plan_over()
    engine = engine_over(plan)
    assert engine.key_kinds == {name: KINDS[name] for name in engine.fields}
    engine.save(tmp_path / "m.ffm")
    cb.publish.pack(engine, tmp_path / "m.fbw")
    cb.publish.pack(str(tmp_path / "m.ffm"), tmp_path / "again.fbw")
    for name in ("m.ffm", "m.fbw", "again.fbw"):
        found = cb.DeepFFM.load(tmp_path / name)
        assert found.key_kinds == engine.key_kinds
        found.check_schema(plan.schema)
    model = create(tmp_path / "model", plan, engine, context=["user"])
    assert read_weights(model.published.file()).about["keys"] == list(engine.key_kinds.values())


def test_files_without_kinds_still_load(tmp_path: Path) -> None:
    """A file of the releases before the kinds has version 2, and no `keys` in the directory of a weight file."""
    plan = plan_over()
    engine = engine_over(plan)
    cb.publish.pack(engine, tmp_path / "new.fbw")
    weights = read_weights(tmp_path / "new.fbw")
    del weights.about["keys"]
    write_weights(tmp_path / "old.fbw", weights)
    engine.key_kinds = dict.fromkeys(engine.fields, "")
    engine.save(tmp_path / "old.ffm")
    assert struct.unpack_from("<I", (tmp_path / "old.ffm").read_bytes(), 8) == (2,)
    for name in ("old.fbw", "old.ffm"):
        found = cb.DeepFFM.load(tmp_path / name)
        assert found.key_kinds == dict.fromkeys(engine.fields, "")
        found.check_schema(plan.schema)
        create(tmp_path / f"of {name}", plan, found, context=["user"])


def test_a_plan_with_other_keys_is_refused_in_one_sentence(tmp_path: Path) -> None:
    engine = engine_over(plan_over())
    told = "field 'user' was trained on keys of whole numbers, but the plan makes keys of strings"
    other = plan_over(col("user").cast("str").key())
    with pytest.raises(PlanError, match=told):
        create(tmp_path / "model", other, engine, context=["user"])
    assert not (tmp_path / "model").exists()
    model = create(tmp_path / "model", other, engine_over(other), context=["user"])
    with pytest.raises(DataError, match=told):
        model.published.publish(engine)
    assert Published(tmp_path / "model" / "weights").current.number == 1  # type: ignore[union-attr]


def test_a_folder_with_weights_of_other_keys_is_not_served(tmp_path: Path) -> None:
    """The weights came into the folder without `publish`, as by a copy."""
    from ctrbox.serve.served_models import Live, ServedFfm

    other = plan_over(col("user").cast("str").key())
    with pytest.raises(DataError, match="the model does not fit its plan: field 'user' was trained on keys of whole"):
        ServedFfm(other, ("user",), Live(engine_over(plan_over()), 1), cache_bytes=0, most_candidates=10)


def test_a_run_of_another_plan_is_refused_by_the_kind_of_its_keys(tmp_path: Path) -> None:
    from ctrbox.predict.published_run import click_model_of

    plan = plan_over()
    run = cb.Trainer(cb.models.DeepFM(plan.schema, 2, hidden=(4,)), cb.MemoryTable(2)).fit(
        plan, batch_size=3, epochs=1, valid=0.25, out=tmp_path / "run"
    )
    model = create(tmp_path / "model", plan, run, context=["user"])
    weights = read_weights(model.published.file())
    assert weights.about["keys"] == {name: kind for name, kind in KINDS.items() if kind != "dense"}
    click_model_of(weights, plan.schema, "the model")
    other = plan_over(col("user").cast("str").key())
    with pytest.raises(DataError, match="the model does not fit the plan: field 'user' was trained on keys of whole"):
        click_model_of(weights, other.schema, "the model")
    for kinds in (None, [], {"user": 5}, {"user": "none"}, {"user": ["int"]}):  # of other releases, or of a stranger
        weights.about["keys"] = kinds
        click_model_of(weights, plan.schema, "the model")


def test_text_after_a_plan_makes_a_model_of_text(tmp_path: Path) -> None:
    plan = plan_over()
    engine = engine_over(plan)
    (tmp_path / "train.vw").write_text("1 |user 7 |query red\n")
    engine.learn(cb.ffm.ExampleText(tmp_path / "train.vw"))
    engine.save(tmp_path / "m.ffm")
    with pytest.raises(PlanError, match="field 'user' was trained on keys of the text of examples, but the plan makes"):
        cb.DeepFFM.load(tmp_path / "m.ffm").check_schema(plan.schema)


@pytest.mark.parametrize("keys", [["int"], ["int", "none"], "int", [1, 2], {"a": "int"}])
def test_kinds_that_are_none_are_refused(tmp_path: Path, keys: object) -> None:
    cb.publish.pack(cb.DeepFFM(["a", "b"], k=2, bits=6), tmp_path / "m.fbw")
    weights = read_weights(tmp_path / "m.fbw")
    weights.about["keys"] = keys
    write_weights(tmp_path / "m.fbw", weights)
    with pytest.raises(SourceError, match="its list of kinds of keys is damaged"):
        cb.DeepFFM.load(tmp_path / "m.fbw")
    folder = Published(tmp_path / "versions")
    folder.serves(["a", "b"], {"a": "int"})
    with pytest.raises(DataError, match="its list of kinds of keys is damaged"):
        folder.publish(str(tmp_path / "m.fbw"))


def test_two_kinds_are_one_where_they_agree() -> None:
    assert [
        joined(a, b) for a, b in (("", "int"), ("int", ""), ("int", "int"), ("int", "string"), ("int", "text"))
    ] == [
        "int",
        "int",
        "int",
        "",
        "text",
    ]
    assert mismatch({"a": "int", "b": ""}, {"a": "int", "b": "string"}) == mismatch({"a": "int"}, {"a": ""}) == ""
    assert json.dumps(mismatch({"a": "int"}, {"a": "dense"})) == (
        "\"field 'a' was trained on keys of whole numbers, but the plan makes the numbers of a dense column\""
    )
