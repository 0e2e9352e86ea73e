"""JointTowers against the paper's words written out in NumPy, row by row; what it refuses; and it learns the ad log."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.columns.batch import Field, Schema
from ctrbox.errors import PlanError
from ctrbox.models import Inputs, JointTowers, build
from tests.models.worlds import inputs, leaves, schema

DENSE = (("age", 1), ("title", 3), ("user_ctr", 1), ("log_bid", 1))
TOWERS = [["age", "user_ctr"], ["title"], ["log_bid"]]


def of(dense: tuple[tuple[str, int], ...] = DENSE, sparse: int = 4) -> Schema:
    return Schema(schema(sparse).sparse, dense, True, False, False)


def made(of_: Schema, dim: int = 4, **more: Any) -> JointTowers:
    torch.manual_seed(7)
    model = JointTowers(of_, dim, **more)
    with torch.no_grad():  # biases start at zero, where a twin that forgot them would agree
        for name, value in model.named_parameters():
            if name.endswith("bias"):
                value.normal_()
    return model


# ---- the slow twin ------------------------------------------------------------------------------------------------


def slow(model: JointTowers, of_: Schema, x: Inputs, seen: list[np.ndarray]) -> np.ndarray:
    """The network as the paper tells it, one row and one tower at a time; ``seen``: the dense matrices trained on."""
    weights = {name: value.detach().numpy().astype(np.float64) for name, value in model.state_dict().items()}
    logs = [np.sign(d) * np.log1p(np.abs(d)) for d in (s.astype(np.float64) for s in seen)]
    rows = np.concatenate(logs)
    starts, at = {}, 0
    for name, width in of_.dense:
        starts[name] = (at, at + width)
        at += width
    answer = []
    for r in range(x.rows):
        fields = [x.field(name)[r].detach().numpy().astype(np.float64) for name in model.reads.fields]
        if model.config["embedding"] == "layer":
            e = np.maximum(sum(fields) + weights["embedding.bias"], 0.0)
        else:
            e = np.concatenate([*fields, np.zeros(0)])
        raw = x.dense[r].numpy().astype(np.float64)
        scaled = np.sign(raw) * np.log1p(np.abs(raw))
        z = np.zeros(len(raw))
        for c in range(len(raw)):
            z[c] = np.clip((scaled[c] - rows[:, c].mean()) / rows[:, c].std(), -10.0, 10.0)
        first = last = None
        lasts, shares = [], []
        for k, names in enumerate(model.kinds):
            own = [z[slice(*starts[name])] for name, _ in of_.dense if name in names]
            below = np.concatenate([e, *own])
            if first is not None and last is not None:
                below = np.concatenate([below, first] if len(model.config["hidden"]) == 1 else [below, first, last])
            hidden = []
            for i, width in enumerate(model.config["hidden"]):
                below = np.maximum(
                    below @ weights[f"towers.{k}.maps.layers.{i}.weight"] + weights[f"towers.{k}.maps.layers.{i}.bias"],
                    0.0,
                )
                assert below.shape == (width,)
                hidden.append(below)
            first, last = hidden[0], hidden[-1]
            lasts.append(last)
            shares.append(weights[f"towers.{k}.maps.layers.{len(hidden)}.weight"])
        answer.append(float(np.concatenate(lasts) @ np.concatenate(shares)[:, 0] + weights["bias"][0]))
    return np.array(answer)


@st.composite
def networks(draw: st.DrawFn) -> tuple[Schema, dict[str, Any]]:
    widths = draw(st.lists(st.integers(1, 3), max_size=4))
    dense = tuple((f"d{k}", width) for k, width in enumerate(widths))
    sparse = draw(st.integers(0 if dense else 1, 4))
    more: dict[str, Any] = {"hidden": draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))}
    if sparse and draw(st.booleans()):
        more["embedding"] = "layer"
    elif sparse > 1 and draw(st.booleans()):
        more["dims"] = {"user": 2}
    if draw(st.booleans()):
        count = draw(st.integers(1, 4))
        towers: list[list[str]] = [[] for _ in range(count)]
        for at, (name, _) in enumerate(dense):
            # The first feature goes to the first tower: without fields it would have nothing to read.
            homes = draw(st.sets(st.integers(0, count - 1), min_size=1)) | ({0} if at == 0 else set())
            for home in homes:
                towers[home].insert(draw(st.integers(0, len(towers[home]))), name)
        more["towers"] = towers
    return of(dense, sparse), more


@given(networks(), st.sampled_from([0, 1, 2, 7]), st.sampled_from([1.0, 1e9]))
@settings(deadline=None, max_examples=60)
def test_the_logits_are_those_of_the_paper_written_out(
    network: tuple[Schema, dict[str, Any]], rows: int, scale: float
) -> None:
    of_, more = network
    model = made(of_, **more)
    seen = [inputs(model.reads, count, seed=seed, dense=scale) for seed, count in ((1, 5), (2, 3))]
    for x in seen:
        model(x)
    model.eval()
    x = inputs(model.reads, rows, seed=3, dense=scale)
    got = model(x)
    assert got.shape == (rows,)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(
        got.detach().numpy(), slow(model, of_, x, [s.dense.numpy() for s in seen]), rtol=2e-4, atol=2e-4
    )


# ---- towers ---------------------------------------------------------------------------------------------------------


def test_single_columns_share_a_tower_and_each_dense_vector_has_its_own() -> None:
    assert JointTowers(of()).kinds == [["age", "user_ctr", "log_bid"], ["title"]]
    assert JointTowers(of((("title", 3), ("image", 2)))).kinds == [["title"], ["image"]]
    assert JointTowers(of((("age", 1),))).kinds == [["age"]]
    assert JointTowers(of(())).kinds == [[]]


@pytest.mark.parametrize(
    ("dense", "towers", "hidden", "widths"),
    [
        ((), None, (8, 4), [16]),
        ((), [[], []], (8, 4), [16, 16 + 8 + 4]),
        ((("age", 1),), None, (8, 4), [17]),
        ((("title", 3),), [["title"]], (8, 4), [19]),
        (DENSE, None, (8, 6, 4), [16 + 3, 16 + 3 + 8 + 4]),
        (DENSE, TOWERS, (8, 6, 4), [16 + 2, 16 + 3 + 8 + 4, 16 + 1 + 8 + 4]),
        (DENSE, TOWERS, (8,), [16 + 2, 16 + 3 + 8, 16 + 1 + 8]),
        (DENSE, [[], ["age", "title"], ["age", "user_ctr", "log_bid"]], (8,), [16, 16 + 4 + 8, 16 + 3 + 8]),
    ],
)
def test_a_tower_reads_embeddings_its_own_dense_features_and_two_layers_of_the_tower_before(
    dense: tuple[tuple[str, int], ...], towers: Any, hidden: tuple[int, ...], widths: list[int]
) -> None:
    model = JointTowers(of(dense), 4, towers=towers, hidden=hidden)
    state = model.state_dict()
    for k, width in enumerate(widths):
        sizes = [width, *hidden, 1]
        for i, shape in enumerate(pairwise(sizes)):
            assert state[f"towers.{k}.maps.layers.{i}.weight"].shape == shape
    assert len(model.towers) == len(widths)
    assert model(inputs(model.reads, 5)).shape == (5,)


def test_one_tower_is_embedding_mlp() -> None:
    torch.manual_seed(7)
    plain = cb.models.EmbeddingMLP(schema(), 4, hidden=(8, 6))
    torch.manual_seed(7)
    joint = JointTowers(schema(), 4, hidden=(8, 6))
    x = inputs(plain.reads, 9)
    torch.testing.assert_close(joint(x), plain(x), rtol=0, atol=0)


def test_a_dense_feature_is_read_by_its_tower_and_through_it_by_the_next_ones_alone() -> None:
    model = made(of(), towers=TOWERS, hidden=(8, 6))
    for seed in range(3):
        model(inputs(model.reads, 30, seed=seed))
    model.eval()
    x = inputs(model.reads, 30, seed=9)
    first_layers: list[list[torch.Tensor]] = []
    for column in (None, 0, 2, 5):  # nothing, then one column of age, title, log_bid
        dense = x.dense.clone()
        if column is not None:
            dense[:, column] += 3.0
        layers: list[torch.Tensor] = []
        hooks = [
            tower.register_forward_hook(lambda _m, _i, out, layers=layers: layers.append(out[0]))
            for tower in model.towers
        ]
        model(Inputs(x.reads, x.rows, dense, x.pooled, x.sequences))
        for hook in hooks:
            hook.remove()
        first_layers.append(layers)
    before, *changed = first_layers
    moved = [[not torch.equal(a, b) for a, b in zip(before, after, strict=True)] for after in changed]
    assert moved == [[True, True, True], [False, True, True], [False, False, True]]


@pytest.mark.parametrize("embedding", ["fields", "layer"])
@pytest.mark.parametrize("hidden", [(6,), (8, 6), (8, 7, 6)])
def test_gradients_reach_every_weight_of_every_tower_and_every_vector(embedding: str, hidden: tuple[int, ...]) -> None:
    model = made(of(), towers=TOWERS, embedding=embedding, hidden=hidden)
    x = inputs(model.reads, 256)
    model(x).square().sum().backward()
    for what, value in model.named_parameters():
        assert value.grad is not None, what
        assert (value.grad.abs().sum(0) > 0).any(), what
        if what.endswith("layers.0.weight"):  # each input of a tower: embeddings, dense, both layers passed on
            assert (value.grad.abs().sum(1) > 0).sum() > 0.8 * len(value), what
    for what, vectors in leaves(x).items():
        assert (vectors.grad.abs().sum((0, 2)) > 0).all(), what


def test_one_seed_gives_one_model_and_another_seed_another() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return JointTowers(of(), towers=TOWERS).state_dict()

    torch.testing.assert_close(weights(3), weights(3), rtol=0, atol=0)
    assert not torch.equal(weights(3)["towers.2.maps.layers.0.weight"], weights(4)["towers.2.maps.layers.0.weight"])


@pytest.mark.parametrize(
    "more",
    [
        {"towers": TOWERS},
        {"towers": tuple(map(tuple, TOWERS)), "embedding": "layer", "hidden": (5,)},
        {"towers": [[], ["age", "title", "user_ctr", "log_bid"]], "batch_norm": True, "dropout": 0.2},
    ],
    ids=["three towers", "the paper's layer", "normalized"],
)
def test_several_towers_are_built_again_from_plain_json_and_any_batch_gives_a_row_one_answer(
    more: dict[str, Any],
) -> None:
    model = made(of(), **more)
    for rows in (20, 1, 0, 2):
        assert torch.isfinite(model(inputs(model.reads, rows, dense=1e9))).all()
    again = build("JointTowers", of(), json.loads(json.dumps(model.config)))
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    x = inputs(model.reads, 12, seed=5)
    with torch.no_grad():
        whole = model.eval()(x)
        torch.testing.assert_close(again.eval()(x), whole, rtol=0, atol=0)
        one = Inputs(
            x.reads, 1, x.dense[4:5], tuple(cb.models.Pooled(p.fields, None, p.vectors[4:5]) for p in x.pooled), {}
        )
        torch.testing.assert_close(model(one), whole[4:5], rtol=1e-4, atol=1e-5)


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"towers": [["age", "user_ctr"], ["log_bit", "title"]]},
            "tower 2 names 'log_bit'.*nearest: 'log_bid'; it has",
        ),
        ({"towers": [["title.1"]]}, "tower 1 names 'title.1'.*nearest: 'title'"),
        ({"towers": [["user"]]}, r"'user', which is not a dense feature.*it has \['age'"),
        ({"towers": [[3]]}, "tower 1 names 3"),
        ({"towers": [["age", "user_ctr", "title"]]}, "no tower reads the dense feature 'log_bid'"),
        ({"towers": [[]]}, "no tower reads the dense feature 'age'"),
        ({"towers": [["age", "title", "age"]]}, "tower 1 names 'age' twice"),
        ({"towers": []}, "one list of dense features for each tower"),
        ({"towers": "age"}, "one list of dense features for each tower, got 'age'"),
        ({"towers": 3}, "one list of dense features for each tower, got 3"),
        ({"towers": ["age", "title"]}, "tower 1 must be a list of dense features .* got 'age'"),
        ({"towers": [["age"], None]}, "tower 2 must be a list"),
        ({"hidden": ()}, "hidden of JointTowers must be a list of layer widths"),
        ({"hidden": (8, 0)}, "hidden of JointTowers"),
        ({"embedding": "layers"}, "nearest: 'layer'"),
        ({"embedding": "layer", "dims": {"user": 8}}, "the same dim for all"),
        ({"embedding": "layer", "dim": 0}, "there are no sparse fields; use embedding='fields'"),
        ({"dim": 0, "towers": [[], ["age", "title", "user_ctr", "log_bid"]]}, "the first tower would have no inputs"),
        ({"dropout": 1.0}, "dropout"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_says_what_is_wrong(more: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        JointTowers(of(), **more)


def test_an_embedding_layer_needs_fields() -> None:
    with pytest.raises(PlanError, match="there are no sparse fields"):
        JointTowers(of(sparse=0), embedding="layer")
    assert JointTowers(Schema((Field("user", "user", False),), (), True, False, False), embedding="layer").kinds == [[]]


# ---- learning -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ad_log(tmp_path_factory: pytest.TempPathFactory) -> cb.Plan:
    data: Path = tmp_path_factory.mktemp("towers") / "data"
    cb.datasets.adlog(rows=20_000, seed=1, out=data)
    users = cb.View(f"{data}/users", key="user_id").fill(segment=-1, interests="")
    ads = cb.View(f"{data}/ads", key="ad_id").fill(category="none", title="", bid=0.0)
    log = cb.View(f"{data}/impressions", key="instance_id").fill(query="", position=-1)
    topic, interests = col("category").split("/").first(1), col("interests").split("|")
    return cb.compile(
        log.join(users, on="user_id").join(ads, on="ad_id"),
        cb.FeatureSet(
            label=col("clicked"),
            sparse={
                "segment": col("segment").key(),
                "topic": topic.key(),
                "position": col("position").key(),
                "interests": interests.key(),
            },
            dense={
                "overlap": cb.overlap(col("query").lower().words(), col("title").lower().words()),
                "interest": cb.overlap(interests, topic),
                "log_bid": col("bid").log1p(),
            },
        ),
        device="cpu",
    )


def learned(plan: cb.Plan, model: torch.nn.Module, dim: int) -> cb.Run:
    trainer = cb.Trainer(model, cb.MemoryTable(dim, optimizer=cb.Adagrad(lr=0.1)), optimizer=cb.optim.Adam(lr=0.01))
    return trainer.fit(plan, valid=0.2, epochs=3, batch_size=512, by={})


def test_it_learns_the_ad_log_better_than_lr(ad_log: cb.Plan) -> None:
    floor = learned(ad_log, cb.models.LR(ad_log.schema), 0).metrics
    torch.manual_seed(0)
    towers = [["overlap", "interest"], ["log_bid"]]
    model = JointTowers(ad_log.schema, 8, towers=towers, hidden=(32, 16))
    found = learned(ad_log, model, 8).metrics  # 0.728 against 0.709
    assert found["auc"] > floor["auc"] + 0.01
    assert found["logloss"] < floor["logloss"]
