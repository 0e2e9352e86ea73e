"""Encoders by direct calls: what they refuse, what they say about themselves, and the vectors of single items."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox.columns.encoder_of_vectors import EncodedBy
from ctrbox.embed.vectors.decode_image import Refused
from ctrbox.embed.vectors.encode_single_items import ENTRY, EncodedItems
from ctrbox.embed.vectors.encoders import Crop, load_weights
from ctrbox.errors import DataError, PlanError
from tests.embed.vectors.test_encode import Image, Letters, Tiny, picture, saved, small, tiny


class Given(nn.Module):
    """Returns what a function makes of its inputs."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, inputs: Any) -> Any:
        return self.answer(inputs)


def texts(answer: Any = None) -> cb.tables.Encoder:
    return cb.tables.Encoder(Letters() if answer is None else Given(answer), kind="text", name="texts")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"module": abs}, "an encoder needs a torch module, got a builtin_function_or_method"),
        ({"kind": "sound"}, "kind must be 'image' or 'text', got 'sound'"),
        ({"kind": "text", "prepare": small}, "prepare= is for images; a module for texts takes the strings themselves"),
        ({"device": "nowhere"}, "device 'nowhere' cannot be used: Expected one of cpu, cuda"),
    ],
)
def test_what_is_no_encoder_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as told:
        cb.tables.Encoder(**{"module": Tiny(), **given})
    assert str(told.value).startswith(says)


def test_an_encoder_takes_its_name_from_its_module_and_crops_where_nothing_else_was_given() -> None:
    plain = cb.tables.Encoder(Tiny().train())
    assert (plain.name, repr(plain.prepare), plain.kind) == ("Tiny", "Crop(size=224, resize=256)", "image")
    assert not plain.module.training
    assert (tiny().name, tiny().prepare) == ("tiny", small)


def test_facts_tell_everything_on_which_vectors_depend() -> None:
    state = hashlib.sha256()
    for name, value in Tiny().state_dict().items():
        state.update(f"{name}\0torch.float32\0{tuple(value.shape)}\0".encode() + value.numpy().tobytes())
    rest = (state.hexdigest(), "cpu", torch.__version__)
    assert tiny().facts == EncodedBy("tiny", "image", "Tiny", "small", *rest)
    assert cb.tables.Encoder(Tiny(), Crop(8, 10)).facts == EncodedBy(
        "Tiny", "image", "Tiny", "Crop(size=8, resize=10)", *rest
    )

    class Prepare:
        def __call__(self, image: Any) -> torch.Tensor:
            return small(image)

    assert cb.tables.Encoder(Tiny(), Prepare()).facts.prepare == "Prepare"
    assert texts().facts == EncodedBy(
        "texts", "text", "Letters", "", hashlib.sha256().hexdigest(), "cpu", torch.__version__
    )


def test_images_run_in_whole_batches_where_the_device_is_no_cpu() -> None:
    # The device "meta" has no memory; it is enough for the question.
    elsewhere = [cb.tables.Encoder(Tiny(), device="meta"), cb.tables.Encoder(Letters(), kind="text", device="meta")]
    assert [one.whole_batches for one in (tiny(), texts(), *elsewhere)] == [False, False, True, False]


def test_a_lambda_needs_the_name_of_its_encoder() -> None:
    with pytest.raises(PlanError) as told:
        cb.tables.Encoder(Tiny(), lambda image: small(image))
    assert str(told.value) == (
        "prepare= is a lambda, which has no name that tells it from another one; give the encoder a name that changes with it, "
        "name='…', or write prepare as a function with def"
    )
    assert cb.tables.Encoder(Tiny(), lambda image: small(image), name="v1").facts.name == "v1"


def test_only_a_function_of_the_user_has_a_digest() -> None:
    class Mine(Crop):
        pass

    assert [one.code for one in (texts(), cb.tables.Encoder(Tiny()), cb.tables.Encoder(Tiny(), Crop(8, 10)))] == [
        "",
        "",
        "",
    ]
    assert len(tiny().code) == len(cb.tables.Encoder(Tiny(), Mine()).code) == 64


def test_the_width_is_that_of_a_trial() -> None:
    assert (texts().width, tiny().width, tiny(width=7).width) == (3, 4, 7)
    tried: list[Any] = []
    made = cb.tables.Encoder(Tiny(), lambda image: (tried.append(image), small(image))[1], name="tried")
    assert made.width == 4
    assert [(one.size, one.mode, one.getextrema()) for one in tried] == [((256, 256), "RGB", ((0, 0),) * 3)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda texts: torch.ones(2, 3), "returned shape (2, 3) for 1 input(s)"),
        (lambda texts: torch.ones(1), "returned shape (1,) for 1 input(s)"),
        (lambda texts: torch.ones(1, 3, 1), "returned shape (1, 3, 1) for 1 input(s)"),
        (lambda texts: np.ones((1, 3)), "returned a ndarray for 1 input(s)"),
    ],
)
def test_what_is_not_one_vector_for_each_input_is_refused(answer: Any, says: str) -> None:
    with pytest.raises(DataError) as told:
        texts(answer).encode(["a"])
    assert str(told.value) == (f"encoder 'texts' {says}; expected a tensor with one row, the vector, for each input")


def test_vectors_have_one_width_and_images_one_shape() -> None:
    with pytest.raises(DataError) as told:
        texts(lambda given: torch.ones(1, len(given[0]))).encode(["abc", "a", "ab", "a"])
    assert (
        str(told.value)
        == "encoder 'texts' returned vectors of 1 and of 2 numbers; all vectors must have the same width"
    )
    with pytest.raises(DataError) as told:
        tiny().encode([torch.ones(3, 8, 8), torch.ones(3, 9, 8), torch.ones(3, 8, 8)])
    assert str(told.value) == (
        "prepare= returned tensors of different shapes: [(3, 8, 8), (3, 9, 8)]; it must return the same shape for every item"
    )
    made = texts(lambda given: torch.tensor([[2.0, 3.0]], dtype=torch.float64)).encode(["a", "b"])
    assert (made.tolist(), made.dtype) == ([[2.0, 3.0]] * 2, np.float32)


def test_bytes_become_the_input_of_the_module_within_bounds() -> None:
    assert texts().prepared("bäc".encode()) == "bäc"
    assert texts().prepared(b"abc", most_bytes=3) == "abc"
    image = saved(picture(1, (9, 6)))
    assert torch.equal(tiny().prepared(image, len(image), 54), small(picture(1, (9, 6))))
    for encoder, data, bounds, cause in (
        (texts(), b"abc", (2, 1), "bytes"),
        (texts(), b"\xff", (9, 1), "damaged"),
        (tiny(), image, (len(image) - 1, 54), "bytes"),
        (tiny(), image, (len(image), 53), "pixels"),
    ):
        with pytest.raises(Refused) as told:
            encoder.prepared(data, *bounds)
        assert told.value.cause == cause


def test_weights_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    state = Tiny().state_dict()
    for given, says in (
        ({}, "it lacks 'conv.bias' (missing names: 2, unknown names: 0)"),
        (
            {"conv.bias": state["conv.bias"], "a": 1, "b": 2},
            "it lacks 'conv.weight' (missing names: 1, unknown names: 2)",
        ),
        ({**state, "b": 1, 7: 2}, "it has an unknown name, '7' (missing names: 0, unknown names: 2)"),
        ({**state, "conv.bias": 5}, "'conv.bias' is int, expected (4,)"),
        ({**state, "conv.bias": state["conv.bias"] / 0}, "'conv.bias' holds numbers that are NaN or infinite"),
    ):
        torch.save(given, tmp_path / "w.pt")
        with pytest.raises(DataError) as told:
            load_weights(Tiny(), tmp_path / "w.pt")
        assert says in str(told.value)


# ---- single items


def test_vectors_of_single_items_are_remembered_and_the_oldest_forgotten() -> None:
    met: list[str] = []

    def answer(given: list[str]) -> torch.Tensor:
        met.extend(given)
        return torch.tensor([[float(len(given[0])), 1.0]])

    items = EncodedItems(texts(answer), kept_bytes=2 * (8 + ENTRY))
    for text in ("a", "bb", "a", "ccc", "bb", "a"):  # "bb" is the older when "ccc" comes
        assert items.vector(text.encode()).tolist() == [len(text), 1.0]
    assert (met, items.encoded, len(items)) == (["a", "bb", "ccc", "bb", "a"], 5, 2)
    one = EncodedItems(texts(answer), kept_bytes=0)
    one.vector(b"a")
    one.vector(b"a")
    assert (len(one), one.encoded) == (1, 1)


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8()])
def test_a_column_of_texts_becomes_lists_of_vectors(kind: pa.DataType) -> None:
    items = EncodedItems(texts())
    found = items.column(pa.array(["ab", "", "ccb", "ab"], kind))
    assert found.to_pylist() == [[1, 1, 0], [0, 0, 0], [0, 1, 2], [1, 1, 0]]
    assert (items.encoded, found.type) == (3, pa.large_list(pa.float64()))
    assert items.column(pa.array([], kind)).to_pylist() == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            lambda given: torch.ones(1, 3 if given == ["a"] else 2),
            "the vector of the text of 2 bytes that begins with b'bb' has 2 numbers; expected 3 numbers, all of them finite",
        ),
        (
            lambda given: torch.ones(1, 1) / (given == ["a"]),
            "the vector of the text of 2 bytes that begins with b'bb' has 1 numbers; expected 1 numbers, all of them finite",
        ),
    ],
)
def test_a_vector_of_another_width_or_not_finite_is_refused(answer: Any, says: str) -> None:
    with pytest.raises(DataError) as told:
        EncodedItems(texts(answer)).column(pa.array(["bb"]))
    assert str(told.value) == says


def test_an_item_that_cannot_be_decoded_is_told_by_its_first_bytes() -> None:
    with pytest.raises(DataError) as told:
        EncodedItems(tiny()).column(pa.array(["no image at all, but text"]))
    assert str(told.value) == (
        "the image of 25 bytes that begins with b'no image at all, but' is not a JPEG, PNG or WebP image; it begins with "
        "b'no image'"
    )
    wide = saved(Image.new("RGB", (10, 3)))
    assert EncodedItems(tiny(), most_pixels=30).vector(wide).shape == (4,)
    with pytest.raises(Refused, match="has 10 x 3 pixels, but only images of 1 to 29 pixels are decoded"):
        EncodedItems(tiny(), most_pixels=29).vector(wide)
