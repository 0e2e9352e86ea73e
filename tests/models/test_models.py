"""Every model: hostile shapes, gradients everywhere, the same answer in any batch, built again from its config, and "
"it learns."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from ctrbox.columns.batch import Field, Schema
from ctrbox.errors import PlanError
from ctrbox.models import DIN, MODELS, WideDeep, build
from tests.models.worlds import Checkerboard, inputs, labeled, leaves, made, schema, take

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in MODELS),
    *(
        (name, {"batch_norm": True, "dropout": 0.2, "hidden": [6]})
        for name in MODELS
        if name not in ("LR", "FM", "MaskNet")
    ),
    ("MaskNet", {"dropout": 0.2}),
    ("MaskNet", {"structure": "parallel", "batch_norm": True, "dropout": 0.2, "hidden": [6]}),
    *((name, {"hidden": []}) for name in ("EmbeddingMLP", "DeepCrossing", "DeepFM", "DIN")),
    ("EmbeddingMLP", {"dims": {"user": 7, "query": 2}, "activation": "prelu"}),
    ("WideDeep", {"dims": {"user": 0}, "wide": ["user", "query"]}),
    ("PNN", {"product": "outer"}),
    ("PNN", {"product": "both", "pooling": "sum"}),
    ("XDeepFM", {"cin": [5, 3, 2]}),
    ("XDeepFM", {"cin": [5]}),
    ("DCNv2", {"structure": "stacked"}),
    ("DCNv2", {"rank": 3}),
    ("DCNv2", {"rank": 3, "experts": 1, "structure": "stacked"}),
    ("DIN", {"softmax": True, "activation": "prelu", "attention": [8, 4]}),
    ("DIN", {"pooling": {"query": "max"}, "fields": ["history", "ad", "query"]}),
    ("DICM", {"base": "lr"}),
    ("DICM", {"base": "din"}),
    ("TwoTower", {"user": ["user", "history"], "ad": ["ad", "query"], "hidden": [], "pooling": "sum"}),
    ("AutoInt", {"layers": 3, "heads": 1, "width": 5, "hidden": []}),
    ("MaskNet", {"structure": "parallel", "blocks": [6, 5, 4], "reduction": 0.5}),
    ("FinalMLP", {"first_context": ["user"], "second_context": ["ad", "query"], "heads": 4, "second_hidden": [8]}),
    ("FinalMLP", {"gates": False, "activation": "prelu", "heads": 1, "dims": {"query": 7}}),
    ("GDCN", {"structure": "stacked", "layers": 1}),
    ("BST", {"layers": 2, "heads": 3, "longest": 3}),
    ("SIM", {"search": "hash", "keep": 2, "bits": 8}),
    ("SIM", {"keep": 3, "activation": "prelu", "longest": 2, "pooling": {"query": "max"}}),
    ("HSTU", {"layers": 1, "heads": 1, "width": 3, "longest": 3}),
    ("JointTowers", {"embedding": "layer"}),
    ("JointTowers", {"dims": {"user": 7}, "hidden": [6, 5, 4]}),
]
WITH_HISTORY = ("DIN", "BST", "SIM", "HSTU")
NEEDS_FIELDS = ("FM", "PNN", "DeepFM", "XDeepFM", "AutoInt", "MaskNet", "TwoTower", *WITH_HISTORY)


def named(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


every_variant = pytest.mark.parametrize(("name", "more"), VARIANTS, ids=named)
every_model = pytest.mark.parametrize("name", MODELS)


@every_variant
@pytest.mark.parametrize("dense", [0, 3])
@pytest.mark.parametrize("training", [True, False])
def test_logits_are_one_finite_number_a_row(name: str, more: dict[str, Any], dense: int, training: bool) -> None:
    model = made(name, schema(dense=dense), **more).train(training)
    for rows in (0, 1, 2, 33, 0, 1):
        x = inputs(model.reads, rows, dense=1e9)
        logits = model(x)
        assert logits.shape == (rows,)
        assert logits.dtype == torch.float32
        assert torch.isfinite(logits).all()
        logits.sum().backward()
        for value in [*leaves(x).values(), *model.parameters()]:
            assert value.grad is None or torch.isfinite(value.grad).all()


@every_variant
def test_gradients_reach_every_field_and_every_parameter(name: str, more: dict[str, Any]) -> None:
    model = made(name, schema(), **more)
    x = inputs(model.reads, 64)
    model(x).square().sum().backward()
    for what, value in leaves(x).items():
        if value.numel():
            if value.dim() == 3 and "sequence" not in what:
                by_field = value.grad.abs().sum((0, 2))
            else:
                by_field = value.grad.abs().sum(0)
            wide = more.get("wide")
            if "weights" in what and wide is not None:
                names = next(p.fields for p in x.pooled if p.linear is value)
                by_field = by_field[[k for k, field in enumerate(names) if field in wide]]
            assert (by_field > 0).all(), what
    for what, value in model.named_parameters():
        assert value.grad is not None, what
        assert (value.grad != 0).any() or not value.numel(), what


@every_variant
def test_a_row_gets_the_same_answer_in_any_batch(name: str, more: dict[str, Any]) -> None:
    model = made(name, schema(), **more)
    for seed in range(3):
        model(inputs(model.reads, 20, seed=seed))
    model.eval()
    x = inputs(model.reads, 40, seed=9, dense=5.0)
    with torch.no_grad():
        whole = model(x)
        for rows in ([3], [17, 4], list(range(30))):
            torch.testing.assert_close(model(take(x, rows)), whole[rows], rtol=1e-4, atol=1e-5)


@every_variant
def test_a_model_built_from_its_config_is_the_same_model(name: str, more: dict[str, Any]) -> None:
    model = made(name, schema(), **more)
    x = inputs(model.reads, 20)
    model(x)
    config = json.loads(json.dumps(model.config))
    assert config == model.config
    again = build(name, schema(), config)
    assert again.config == model.config
    assert again.reads == model.reads
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.eval()(x), model.eval()(x), rtol=0, atol=0)


@every_variant
def test_one_seed_gives_one_model(name: str, more: dict[str, Any]) -> None:
    torch.testing.assert_close(
        made(name, schema(), **more).state_dict(), made(name, schema(), **more).state_dict(), rtol=0, atol=0
    )


@every_model
def test_a_new_model_predicts_about_one_half(name: str) -> None:
    model = made(name, schema(), dim=16)
    x = inputs(model.reads, 500)
    with torch.no_grad():
        for value in leaves(x).values():
            value.mul_(0.01)  # about what a table starts with
        assert model(x).abs().max() < 0.5


@every_model
def test_a_model_has_one_bias(name: str) -> None:
    model = made(name, schema())
    x = inputs(model.reads, 5)
    model.eval()
    with torch.no_grad():
        before = model(x)
        model.bias.add_(2.0)
        torch.testing.assert_close(model(x), before + 2.0)
    last = [value for what, value in model.named_parameters() if value.shape == (1,) and "attention" not in what]
    assert len(last) == 1


@every_model
def test_a_plan_without_sparse_fields(name: str) -> None:
    bare = schema(sparse=0)
    if name in NEEDS_FIELDS:
        with pytest.raises(PlanError, match=name):
            made(name, bare)
        return
    model = made(name, bare)
    assert model(inputs(model.reads, 6)).shape == (6,)


@every_model
def test_a_plan_without_ragged_fields(name: str) -> None:
    flat = Schema((*schema(2).sparse, Field("last", "ad", False)), (), True, False, False)
    model = made(name, flat, **({"history": "last"} if name in WITH_HISTORY else {}))
    assert model(inputs(model.reads, 6, longest=1)).shape == (6,)


@every_model
def test_an_empty_plan_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=name):
        made(name, schema(0, 0))


@pytest.mark.parametrize("name", ["FM", "PNN", "DeepFM", "XDeepFM", "AutoInt", "MaskNet"])
def test_models_that_multiply_vectors_refuse_unequal_dims(name: str) -> None:
    with pytest.raises(PlanError, match="the same dim for all"):
        made(name, schema(), dims={"user": 8})
    with pytest.raises(PlanError, match="dim must be 1 or more"):
        made(name, schema(), dim=0)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in (*WITH_HISTORY, "TwoTower")])
def test_a_sequence_that_nobody_would_read_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=f"{name} reads no sequences; field 'query'"):
        made(name, schema(), pooling={"query": "none"})


@pytest.mark.parametrize("name", ["PNN", "XDeepFM", "FM", "DeepFM"])
def test_one_field_is_enough(name: str) -> None:
    model = made(name, schema(1, 0))
    assert model(inputs(model.reads, 3)).shape == (3,)


@every_model
@pytest.mark.slow
def test_the_checkerboard_is_learned_by_all_but_lr(name: str) -> None:
    world = Checkerboard(made(name, schema(), dim=8, **({} if name in ("LR", "FM") else {"hidden": (32, 16)})))
    found = world.learn(80)
    if name == "LR":
        assert abs(found - 0.5) < 0.1
    else:
        assert found > 0.95


def test_the_wide_part_reads_the_fields_named() -> None:
    model = made("WideDeep", schema(), wide=["ad"])
    x = inputs(model.reads, 8)
    model(x).sum().backward()
    gradient = x.pooled[0].linear.grad
    assert [bool(g.any()) for g in gradient.t()] == [name == "ad" for name in model.reads.fields]
    with pytest.raises(PlanError, match="nearest: 'query'"):
        WideDeep(schema(), wide=["queryx"])
    with pytest.raises(PlanError, match=r"^wide of WideDeep names 'ad' twice; remove one of the two$"):
        WideDeep(schema(), wide=["ad", "user", "ad"])


def test_din_refuses_a_history_of_other_keys() -> None:
    with pytest.raises(PlanError, match=r"give 'query' \.key\(space='ad'\) in the FeatureSet"):
        DIN(schema(), history="query")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"target": "add"}, "nearest: 'ad'"),
        ({"history": "historys"}, "nearest: 'history'"),
        ({"target": ["ad", "user"]}, "one target for each history"),
        ({"target": [], "history": []}, "one target for each history"),
        ({"target": "history"}, "is both a target and a history; choose different fields"),
        ({"target": ["ad", "ad"], "history": ["history", "history"]}, "given twice"),
        ({"fields": ["user", "ad"]}, "'history', which is not among"),
        ({"pooling": {"history": "mean"}}, "as a sequence, which is not pooled; remove it from pooling="),
        ({"pooling": {"query": "none"}}, "'query' as a sequence, but it is not one of its histories"),
        ({"dims": {"ad": 0, "history": 0}}, "dim must be 1 or more"),
        ({"dims": {"ad": 8}}, "give both the same dim"),
        ({"activation": "dise"}, "nearest: 'dice'"),
        ({"attention": []}, "layer widths"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_din_says_what_is_wrong(more: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        DIN(schema(), **more)


def test_din_attends_to_several_pairs() -> None:
    of = labeled(
        Field("ad", "ad", False),
        Field("brand", "brand", False),
        Field("ads", "ad", True),
        Field("brands", "brand", True),
    )
    model = DIN(of, target=("ad", "brand"), history=("ads", "brands"), dims={"brand": 4, "brands": 4})
    assert model.reads.sequences == ("ads", "brands")
    x = inputs(model.reads, 9)
    model(x).sum().backward()
    assert all(value.grad.any() for value in leaves(x).values())


def test_din_with_no_history_in_the_whole_batch() -> None:
    model = made("DIN", schema())
    x = inputs(model.reads, 4, longest=0)
    logits = model(x)
    logits.sum().backward()
    assert torch.isfinite(logits).all()


def test_build_names_what_it_does_not_know() -> None:
    with pytest.raises(PlanError, match="nearest: 'DeepFM'"):
        build("DeepMF", schema(), {})
    with pytest.raises(PlanError, match="nearest: 'hidden'"):
        build("DeepFM", schema(), {"hiddens": [3]})
    with pytest.raises(PlanError, match="must be a dict"):
        build("DeepFM", schema(), [3])  # type: ignore[arg-type]
    for config in ({"hidden": 3}, {"hidden": "ab"}, {"hidden": [0]}, {"hidden": None}, {"dim": -1}, {"dropout": 2}):
        with pytest.raises(PlanError):
            build("DeepFM", schema(), config)
    for config in ({"layers": 0}, {"rank": 0}, {"rank": 2, "experts": 0}, {"structure": "parallels"}):
        with pytest.raises(PlanError):
            build("DCNv2", schema(), config)
    with pytest.raises(PlanError, match="nearest: 'inner'"):
        build("PNN", schema(), {"product": "iner"})


@pytest.mark.parametrize(
    ("product", "kinds"),
    [("inner", ["InnerProducts"]), ("outer", ["OuterProducts"]), ("both", ["InnerProducts", "OuterProducts"])],
)
def test_a_pnn_has_the_products_that_it_is_asked_for(product: str, kinds: list[str]) -> None:
    model: Any = MODELS["PNN"](schema(), product=product, dim=4)
    assert [type(layer).__name__ for layer in model.products] == kinds


# ---- the sizes of what a model is made of, and how it begins


@pytest.mark.parametrize(
    ("name", "more", "part"),
    [
        ("BST", {}, "of_target"),
        ("BST", {}, "places"),
        ("SIM", {}, "places"),
        ("HSTU", {}, "places"),
        ("AutoInt", {}, "of_dense"),
        ("FM", {}, "pairs.weight"),
        ("TwoTower", {"hidden": [], "vector": 8}, "towers.user.0.weight"),
    ],
)
def test_what_is_added_to_or_multiplied_with_vectors_begins_small(name: str, more: dict[str, Any], part: str) -> None:
    value = made(name, schema(), dim=16, **more).get_parameter(part)
    assert 0 < value.abs().max() < 0.1


def test_of_two_towers_that_of_the_ad_does_not_begin_small() -> None:
    model = made("TwoTower", schema(), dim=16, hidden=[], vector=8)
    assert model.get_parameter("towers.ad.0.weight").abs().max() > 0.3


def test_a_model_has_as_many_layers_as_asked_for() -> None:
    for layers in (1, 3):
        attention: Any = made("AutoInt", schema(), layers=layers, heads=3, width=5)
        assert (len(attention.attention), len(attention.residual)) == (layers, layers)
        assert attention.of_attention.layers[0].weight.shape == ((4 + 3) * 15, 1)  # four fields and three columns
        for name in ("BST", "HSTU"):
            assert len(made(name, schema(), layers=layers).layers) == layers  # type: ignore[arg-type]


@pytest.mark.parametrize(("reduction", "between"), [(0.01, 1), (0.5, 10), (1.0, 19), (2.0, 38), (16, 304)])
def test_a_mask_is_as_wide_as_asked_for(reduction: float, between: int) -> None:
    model: Any = made("MaskNet", schema(), reduction=reduction, blocks=[6, 5])
    assert [block.squeeze.weight.shape for block in model.blocks] == [(19, between)] * 2  # 4 fields of 4, 3 columns
    assert [block.map.weight.shape for block in model.blocks] == [(19, 6), (6, 5)]
    assert model.drop is None
    assert made("MaskNet", schema(), dropout=0.5).drop.p == 0.5  # type: ignore[union-attr]
    model = made("MaskNet", schema(), structure="parallel", blocks=[6, 5], hidden=[7], dropout=0.5)
    assert [block.map.weight.shape for block in model.blocks] == [(19, 6), (19, 5)]
    assert [layer.weight.shape for layer in model.tower.layers] == [(11, 7), (7, 1)]
    assert model.drop is None


@pytest.mark.parametrize("reduction", [0.009, 16.01, True, "1", float("nan")])
def test_a_mask_of_no_width_is_refused(reduction: Any) -> None:
    with pytest.raises(PlanError, match=r"^reduction of MaskNet must be a number from 0\.01 to 16, got "):
        made("MaskNet", schema(), reduction=reduction)
    with pytest.raises(PlanError, match=r"so it needs a dim of 2 or more, got 1$"):
        made("MaskNet", schema(), dim=1)
    made("MaskNet", schema(), dim=2)
