"""BST, SIM and HSTU: slow twins in plain loops, one history for all rows, lists beside the history, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ctrbox.columns.batch import Field
from ctrbox.errors import PlanError
from ctrbox.models import BST, HSTU, MODELS, SIM, Inputs, SelfAttention
from ctrbox.models.bst import TransformerLayer
from ctrbox.models.hstu import TransducerLayer
from tests.models.worlds import inputs, labeled, made, schema

LISTS = labeled(
    Field("ad", "ad", False),
    Field("brand", "brand", False),
    Field("history", "ad", True),
    Field("ages", "ages", True),
    Field("brands", "brand", True),
)
every_one = pytest.mark.parametrize("name", ["BST", "SIM", "HSTU"])


def jolted(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.3)
    return model.eval()


def silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def test_self_attention_is_a_softmax_over_the_places_that_are_real() -> None:
    torch.manual_seed(3)
    unit = jolted(SelfAttention(4, 2, 3))
    x = torch.randn(3, 5, 4)
    lengths = [5, 1, 3]
    real = torch.arange(5) < torch.tensor(lengths).unsqueeze(1)
    with torch.no_grad():
        found = unit(x, real)
        for row, length in enumerate(lengths):
            for place in range(length):
                wanted = []
                for head in range(2):
                    part = slice(3 * head, 3 * head + 3)
                    q, k, v = (x[row] @ m.weight[:, part] for m in (unit.query, unit.key, unit.value))
                    scores = [float(q[place] @ k[other]) / math.sqrt(3) for other in range(length)]
                    shares = [math.exp(s - max(scores)) for s in scores]
                    wanted.append(sum(s / sum(shares) * v[j] for j, s in enumerate(shares)))
                torch.testing.assert_close(found[row, place], torch.cat(wanted), rtol=1e-4, atol=1e-5)


def test_a_transformer_layer_adds_attention_and_then_two_maps() -> None:
    torch.manual_seed(4)
    layer: Any = jolted(TransformerLayer(4, 2, 0.5))  # nothing is dropped in a prediction
    x, real = torch.randn(2, 5, 4), torch.arange(5) < torch.tensor([[5], [3]])
    with torch.no_grad():
        first = layer.first(x + layer.back(layer.attention(x, real)))
        wide = torch.nn.functional.leaky_relu(layer.wide(first))
        torch.testing.assert_close(layer(x, real), layer.second(first + layer.narrow(wide)))
    assert wide.shape == (2, 5, 16)


def test_a_transducer_layer_equals_its_formula_place_by_place() -> None:
    torch.manual_seed(4)
    layer = jolted(TransducerLayer(3, 2, 2, longest=4))
    x = torch.randn(1, 6, 3)
    with torch.no_grad():
        found, _ = layer.over_history(x)
        u, v, q, k = torch.nn.functional.silu(layer.maps(layer.before(x[0]))).chunk(4, 1)
        for place in range(6):
            heads = []
            for head in range(2):
                part = slice(2 * head, 2 * head + 2)
                total = torch.zeros(2)
                for other in range(place + 1):
                    bias = float(layer.distance[head, min(place - other, 4)])
                    score = silu(float(q[place, part] @ k[other, part]) / math.sqrt(2) + bias) / 4
                    total = total + score * v[other, part]
                heads.append(total)
            wanted = x[0, place] + layer.back(layer.after(torch.cat(heads)) * u[place])
            torch.testing.assert_close(found[0, place], wanted, rtol=1e-4, atol=1e-5)


def test_the_target_reads_a_history_as_if_it_were_its_last_item() -> None:
    torch.manual_seed(5)
    model: Any = jolted(made("HSTU", schema(), longest=4, layers=1))
    x = inputs(model.reads, 7, longest=6)
    past = model.past(x)
    layer, target = model.layers[0], torch.randn(7, 1, 4)
    with torch.no_grad():
        _, kept = layer.over_history(past.items)
        found = layer.over_target(target, kept, past)
        for row, length in enumerate(past.lengths.tolist()):
            together = torch.cat([past.items[row, :length], target[row]]).unsqueeze(0)
            torch.testing.assert_close(found[row, 0], layer.over_history(together)[0][0, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("search", ["inner", "hash"])
def test_the_search_takes_the_nearest_items_and_of_equals_the_newest(search: str) -> None:
    torch.manual_seed(6)
    model: Any = jolted(made("SIM", schema(), search=search, keep=3, bits=4))
    x = inputs(model.reads, 9, longest=7)
    vectors, lengths = x.sequence("history")
    with torch.no_grad():
        vectors[:, 2] = vectors[:, 0] * (lengths > 2).unsqueeze(1)  # equal items: the newer one comes first
    past, target = model.past(x), x.field("ad")
    at, found = model.found(x, past, target)
    for row, length in enumerate(lengths.tolist()):
        near = []
        for place in range(length):
            item, wanted = vectors[row, place].detach(), target[row].detach()
            if search == "hash":
                item, wanted = (torch.where(t @ model.planes >= 0, 1.0, -1.0) for t in (item, wanted))
            near.append((-float(item @ wanted), -place))
        expected = [-place for _, place in sorted(near)[:3]]
        assert int(found[row]) == len(expected)
        assert at[row, : len(expected)].tolist() == expected


def test_a_search_by_category_takes_the_newest_items_of_that_category() -> None:
    torch.manual_seed(7)
    model: Any = jolted(SIM(LISTS, 4, search="category", category="brand", categories="brands", keep=2, age="ages"))
    x = inputs(model.reads, 4, longest=5)
    brands, lengths = x.sequence("brands")
    x = with_lists(x, {"history": lengths, "ages": lengths, "brands": lengths})
    brands = x.sequence("brands")[0]
    with torch.no_grad():
        for row, places in enumerate(([0, 2, 4], [1], [], [0, 1])):
            for place in places:
                brands[row, place] = x.field("brand")[row] * (place < int(lengths[row]))
    at, found = model.found(x, model.past(x), x.field("ad"))
    for row, places in enumerate(([0, 2, 4], [1], [], [0, 1])):
        wanted = [place for place in reversed(places) if place < int(lengths[row])][:2]
        assert at[row, : int(found[row])].tolist() == wanted
    assert torch.isfinite(model(x)).all()


def with_lists(x: Inputs, lengths: dict[str, torch.Tensor]) -> Inputs:
    """Give lists other lengths; what lies behind them becomes padding."""
    sequences = {}
    for name, (vectors, old) in x.sequences.items():
        new = lengths.get(name, old)
        real = torch.arange(vectors.shape[1]) < new.unsqueeze(1)
        sequences[name] = (vectors.detach() * real.unsqueeze(2), new)
    return Inputs(x.reads, x.rows, x.dense, x.pooled, sequences)


@every_one
def test_ages_beside_the_history_count_and_must_have_its_lengths(name: str) -> None:
    torch.manual_seed(8)
    fields = ["ad", "history", "ages"]
    model = jolted(MODELS[name](LISTS, 4, age="ages", fields=fields))
    x = inputs(model.reads, 6)
    lengths = x.sequence("history")[1]
    same = with_lists(x, {"ages": lengths})
    with torch.no_grad():
        before = model(same)
        same.sequences["ages"][0].mul_(-2.0)
        filled = same.sequences["ages"][0].abs().sum((1, 2)) > 0
        assert 0 < int(filled.sum()) < 6
        assert ((model(same) != before) == filled).all()
    other = lengths.clone()
    other[2] += 1 if int(other[2]) < 5 else -1
    with pytest.raises(PlanError, match=rf"'history' and 'ages', but row 2 of a batch has {int(lengths[2])} and"):
        model(with_lists(x, {"ages": other}))


@every_one
@pytest.mark.parametrize("length", [0, 1, 4])
def test_one_history_for_all_rows_gives_what_the_repeated_one_gives(name: str, length: int) -> None:
    torch.manual_seed(9)
    model = jolted(made(name, schema(), **({"keep": 2} if name == "SIM" else {})))
    x = inputs(model.reads, 8)
    vectors = torch.zeros(1, 5, 4)
    vectors[0, :length] = torch.randn(length, 4)
    once = {"history": (vectors.expand(8, -1, -1), torch.tensor([length]).expand(8))}
    repeated = {"history": (vectors.repeat(8, 1, 1), torch.tensor([length]).repeat(8))}
    with torch.no_grad():
        left, right = (model(Inputs(x.reads, 8, x.dense, x.pooled, part)) for part in (once, repeated))
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@every_one
def test_one_history_for_all_rows_may_have_ages_that_differ_by_row(name: str) -> None:
    torch.manual_seed(10)
    model = jolted(MODELS[name](LISTS, 4, age="ages", fields=["ad", "history", "ages"]))
    x = inputs(model.reads, 8)
    vectors, ages, lengths = torch.randn(1, 5, 4), torch.randn(8, 5, 4), torch.full((8,), 5)
    found = []
    for history in (vectors.expand(8, -1, -1), vectors.repeat(8, 1, 1)):
        lists = {"history": (history, lengths), "ages": (ages, lengths)}
        with torch.no_grad():
            found.append(model(Inputs(x.reads, 8, x.dense, x.pooled, lists)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@every_one
def test_no_history_in_the_whole_batch(name: str) -> None:
    model = made(name, schema())
    logits = model(inputs(model.reads, 4, longest=0))
    logits.sum().backward()
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        (BST, {"target": ["ad"]}, r"BST takes the name of one field as target, got \['ad'\]"),
        (HSTU, {"history": "historys"}, "nearest: 'history'"),
        (SIM, {"target": "history", "history": "ad"}, "expected target='ad', history='history'"),
        (
            HSTU,
            {"age": "age"},
            "age of HSTU must be a list field beside the history 'history', got 'age'; nearest: 'ages'",
        ),
        (BST, {"age": "history"}, "got 'history'"),
        (BST, {"dims": {"ages": 5}}, None),
        (BST, {"age": "ages", "dims": {"ages": 5}}, "give both the same dim, not 5 and 16"),
        (HSTU, {"dim": 1}, "needs vectors of 2 numbers or more for 'history', got a dim of 1"),
        (HSTU, {"pooling": {"brands": "none"}}, "'brands' as a sequence, but it is not one of its histories"),
        (HSTU, {"longest": 0}, "longest of HSTU must be a whole number from 1 to 65,536, got 0"),
        (SIM, {"search": "inners"}, "nearest: 'inner'"),
        (SIM, {"search": "category"}, "SIM needs both category= and categories= with search="),
        (SIM, {"category": "brand", "categories": "brands"}, "SIM needs both category= and categories= with search="),
        (SIM, {"search": "category", "category": "ad", "categories": "brands"}, "their keys lie in the spaces"),
        (
            SIM,
            {"search": "category", "category": "brand", "categories": "brands", "dims": {"brand": 0, "brands": 0}},
            "SIM compares the vectors of 'brand' and 'brands', so their dim must be 1 or more",
        ),
        (SIM, {"keep": 0}, "keep of SIM must be a whole number"),
        (SIM, {"bits": 2000}, "bits of SIM must be a whole number from 1 to 1,024"),
    ],
)
def test_what_is_refused(model: Any, more: dict[str, Any], words: str | None) -> None:
    if words is None:
        model(LISTS, **more)
        return
    with pytest.raises(PlanError, match=words):
        model(LISTS, **more)


def test_what_is_zero_has_the_sign_of_what_is_positive() -> None:
    model: Any = SIM(schema(), 4, search="hash", bits=1, keep=1, attention=[2])
    with torch.no_grad():
        model.planes.copy_(torch.tensor([[1.0], [0.0], [0.0], [0.0]]))
    x = inputs(model.reads, 1, longest=2)
    vectors, _ = x.sequence("history")
    with torch.no_grad():
        vectors.copy_(torch.tensor([[[0.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]]))
        near = model.nearness(x, model.past(x), torch.tensor([[2.0, 0.0, 0.0, 0.0]]))
    assert near.tolist() == [[1.0, -1.0]]


def test_an_item_is_the_sum_of_its_key_its_place_and_its_age() -> None:
    torch.manual_seed(2)
    model: Any = BST(LISTS, 4, age="ages", longest=2, fields=["ad", "history", "ages"])
    x = inputs(model.reads, 5)
    lengths = x.sequence("history")[1]
    x = with_lists(x, {"ages": lengths})
    past = model.past(x)
    vectors, ages = x.sequence("history")[0], x.sequence("ages")[0]
    for row, length in enumerate(lengths.tolist()):
        for at in range(vectors.shape[1]):
            place = model.places[min(1, max(0, length - 1 - at))]
            wanted = vectors[row, at] + place + ages[row, at] if at < length else torch.zeros(4)
            torch.testing.assert_close(past.items[row, at], wanted)
        torch.testing.assert_close(past.mean()[row], past.items[row].sum(0) / max(1, length))
