"""A logit is the sum of what the parts of a model give, and of its bias; and the bounds of what a model may be asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ctrbox.arguments.names import one_of
from ctrbox.errors import PlanError
from ctrbox.models import MODELS, Reads
from ctrbox.models.final_mlp import Fusion
from ctrbox.models.model_arguments import asked, sizes
from ctrbox.models.products import GatedCrossNetwork
from tests.models.worlds import inputs, made, schema

SUMMANDS = {"first", "pairs", "tower", "of_cin", "of_cross", "score"}


@pytest.mark.parametrize(
    ("name", "more", "parts"),
    [
        ("LR", {}, {"first"}),
        ("FM", {}, {"first", "pairs"}),
        ("WideDeep", {}, {"first", "tower"}),
        ("DeepFM", {}, {"first", "pairs", "tower"}),
        ("XDeepFM", {}, {"first", "of_cin", "tower"}),
        ("DCNv2", {}, {"of_cross", "tower"}),
        ("DCNv2", {"structure": "stacked"}, {"tower"}),
        ("DeepCrossing", {}, {"score"}),
        ("EmbeddingMLP", {}, {"tower"}),
        ("PNN", {}, {"tower"}),
        ("DIN", {}, {"tower"}),
        ("YouTubeDNN", {}, {"tower"}),
    ],
)
def test_a_logit_is_the_sum_of_the_parts_and_of_the_bias(name: str, more: dict[str, Any], parts: set[str]) -> None:
    model = made(name, schema(), **more).eval()
    given: dict[str, torch.Tensor] = {}
    for part, module in model.named_children():
        if part in SUMMANDS:

            def keep(_: Any, __: Any, out: torch.Tensor, part: str = part) -> None:
                given[part] = out.reshape(-1)

            module.register_forward_hook(keep)
    with torch.no_grad():
        model.bias += 0.75
        for value in model.parameters():  # the last maps begin small, so that a wrong sign could hide in rounding
            value += 0.05
        found = model(inputs(model.reads, 9))
    assert set(given) == parts
    torch.testing.assert_close(found, sum(given.values()) + model.bias.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_one_more_on_the_bias_is_one_more_on_every_logit(name: str) -> None:
    model = made(name, schema()).eval()
    x = inputs(model.reads, 9)
    with torch.no_grad():
        before = model(x)
        model.get_parameter("bias").add_(1.0)
        torch.testing.assert_close(model(x), before + 1.0)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ((1,), ""),
        ([128, 64], ""),
        ((), ""),
        ((1,) * 256, ""),
        ((1,) * 257, "hidden has 257 layers; expected at most 256"),
        ((0,), "each layer of hidden must be a whole number from 1 to 1,048,576, got 0"),
        ((True,), "each layer of hidden must be a whole number from 1 to 1,048,576, got True"),
        ((1.0,), "each layer of hidden must be a whole number from 1 to 1,048,576, got 1.0"),
        ("12", "hidden must be a list of layer widths such as (128, 64), got '12'"),
        (12, "hidden must be a list of layer widths such as (128, 64), got 12"),
    ],
)
def test_widths_of_layers_are_whole_numbers_and_not_too_many(given: Any, refused: str) -> None:
    if not refused:
        assert sizes("hidden", given) == tuple(given)
        return
    with pytest.raises(PlanError) as caught:
        sizes("hidden", given)
    assert str(caught.value) == refused


def test_a_list_of_widths_that_must_not_be_empty() -> None:
    assert sizes("cin", (3,), empty=False) == (3,)
    with pytest.raises(PlanError, match="cin must be a list of layer widths"):
        sizes("cin", (), empty=False)


def test_a_number_of_layers_has_a_limit() -> None:
    with pytest.raises(PlanError, match=r"^layers of DCNv2 must be a whole number from 1 to 256, got 257$"):
        made("DCNv2", schema(), layers=257)


def test_a_name_that_is_none_of_the_known_ones() -> None:
    assert one_of("structure", "stacked", ("parallel", "stacked")) == "stacked"
    with pytest.raises(
        PlanError, match=r"^structure is 'stackd'; nearest: 'stacked'; expected one of parallel, stacked"
    ):
        one_of("structure", "stackd", ("parallel", "stacked"))


def test_what_was_asked_is_plain_json() -> None:
    given = {"hidden": (1, 2), "dims": {"a": 3}, "name": "text", "none": None, "nested": ({"b": (4,)},)}
    found = asked({"self": 0, "schema": 1, **given})
    assert found == {"hidden": [1, 2], "dims": {"a": 3}, "name": "text", "none": None, "nested": [{"b": [4]}]}


def test_fields_without_a_pooling_of_their_own_are_averaged() -> None:
    assert Reads(schema()).pooling == dict.fromkeys(("user", "ad", "query", "history"), "mean")
    assert set(Reads(schema(), pooling="sum").pooling.values()) == {"sum"}
    some = Reads(schema(), pooling={"query": "max", "history": "none"})
    assert some.pooling == {"user": "mean", "ad": "mean", "query": "max", "history": "none"}
    assert (some.fields, some.sequences) == (("user", "ad", "query"), ("history",))
    assert set(Reads(schema(), pooling={}).pooling.values()) == {"mean"}
    with pytest.raises(PlanError, match="pooling of 'user' is 'most'; expected one of sum, mean, max, none"):
        Reads(schema(), pooling="most")


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("MaskNet", {"reduction": 0}, "reduction of MaskNet must be a number from 0.01 to 16, got 0"),
        ("MaskNet", {"structure": "seriel"}, "nearest: 'serial'"),
        ("MaskNet", {"blocks": []}, "the blocks of MaskNet must be a list of layer widths"),
        ("MaskNet", {"batch_norm": True}, 'remove batch_norm=True, or choose structure="parallel"$'),
        ("MaskNet", {"dim": 1}, "so it needs a dim of 2 or more, got 1"),
        (
            "FinalMLP",
            {"hidden": [6, 5]},
            "the last width of hidden is 5, but FinalMLP divides this layer among 2 heads",
        ),
        ("FinalMLP", {"second_hidden": [7]}, "the last width of second_hidden is 7"),
        ("FinalMLP", {"hidden": []}, "hidden must be a list of layer widths"),
        ("FinalMLP", {"first_context": ["usr"]}, "first_context of FinalMLP names 'usr', .* nearest: 'user'"),
        ("FinalMLP", {"gates": "no"}, "gates must be True or False"),
        ("GDCN", {"layers": 0}, "layers of GDCN must be a whole number from 1 to 256"),
        ("AutoInt", {"heads": 0}, "heads of AutoInt must be a whole number"),
        ("AutoInt", {"width": 0}, "width of AutoInt must be a whole number"),
    ],
)
def test_what_the_newer_models_refuse(name: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        made(name, schema(), **more)


def test_a_gated_cross_is_the_cross_times_its_gate() -> None:
    torch.manual_seed(2)
    net = GatedCrossNetwork(3, 2)
    x0 = torch.randn(4, 3)
    x = x0
    for layer, gate in zip(net.layers, net.gates, strict=True):
        x = x0 * (x @ layer.weight + layer.bias) * torch.sigmoid(x @ gate.weight) + x
    torch.testing.assert_close(net(x0), x)


def test_the_fusion_of_final_mlp_is_a_sum_over_heads() -> None:
    torch.manual_seed(2)
    fusion = Fusion(4, 6, 2)
    left, right = torch.randn(5, 4), torch.randn(5, 6)
    wanted = (left @ fusion.of_left.weight + right @ fusion.of_right.weight).squeeze(1)
    for head in range(2):
        a, b = left[:, 2 * head : 2 * head + 2], right[:, 3 * head : 3 * head + 3]
        wanted = wanted + torch.einsum("ri,ij,rj->r", a, fusion.pairs[head], b)
    torch.testing.assert_close(fusion(left, right).squeeze(1), wanted)


def test_the_gates_of_final_mlp_read_their_context_alone() -> None:
    model: Any = made("FinalMLP", schema(dense=0), first_context=["user"], second_context=["ad"])
    x = inputs(model.reads, 5)
    flat = x.flat.detach()
    for gate, name in zip(model.gates, ("user", "ad"), strict=True):
        ratio = gate(torch.ones(5, model.reads.width), [x.field(name)])
        torch.testing.assert_close(gate(flat, [x.field(name)]), flat * ratio)
        ratio.sum().backward(retain_graph=True)
    assert [bool(g.any()) for g in x.pooled[0].vectors.grad.abs().sum((0, 2))] == [
        name in ("user", "ad") for name in model.reads.fields
    ]
