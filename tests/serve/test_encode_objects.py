"""Serving images and texts as bytes: the vectors of the vector file, bit for bit, within bounds that come before decoding."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.cli.job_file import encoders_of as encoders_of_job
from ctrbox.cli.serve import encoders_of
from ctrbox.cli.terminal import Mistake
from ctrbox.embed.vectors import encoders
from ctrbox.embed.vectors.encode_single_items import EncodedItems
from ctrbox.errors import DataError, PlanError
from ctrbox.serve.encode_objects import RawEncoder
from ctrbox.serve.model_folder import ModelFolder, create
from ctrbox.serve.objects_in_requests import Raw
from ctrbox.serve.served_click_model import ServedModel
from ctrbox.serve.served_models import open_served
from ctrbox.serve.server import Server, Settings
from ctrbox.serve.service import Limits

Image = pytest.importorskip("PIL.Image", reason="Pillow, with which images are decoded, is not installed")

ADS, KNOWN, NEW = 30, 24, 10**9
WIDE = 20  # numbers of an image


class Pixels(nn.Module):
    """A small convolutional network."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.out = nn.Linear(24 * 16, WIDE)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.layers(images))
        return found


class Letters(nn.Module):
    def forward(self, texts: list[str]) -> torch.Tensor:
        return torch.tensor([[float(text.count(letter)) for letter in "aeiou"] for text in texts])


def small(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((32, 32)), np.uint8)).permute(2, 0, 1).float() / 255


def pixels(seed: int = 0, **options: Any) -> cb.tables.Encoder:
    return cb.tables.Encoder(Pixels(seed), small, **{"name": "pixels", **options})


def letters() -> cb.tables.Encoder:
    return cb.tables.Encoder(Letters(), kind="text", name="letters")


def picture(ad: int, side: int = 48) -> bytes:
    array = np.random.default_rng(ad).integers(0, 256, (side, side + 5, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(array).save(file, ("PNG", "JPEG", "WEBP")[ad % 3])
    return file.getvalue()


def title(ad: int) -> str:
    return f"{'aeiou'[ad % 5] * (ad % 7)} ad {ad}"


class World:
    """Ads with images and titles; the last ones are unknown when the model is published."""

    def __init__(self, place: Path) -> None:
        self.place = place
        rng = np.random.default_rng(0)
        images = [picture(ad) for ad in range(ADS)]
        self.ads = pa.table({"ad_id": range(ADS), "image": images, "title": [title(ad) for ad in range(ADS)]})
        log = pa.table(
            {"user": rng.integers(0, 9, 400), "ad_id": rng.integers(0, KNOWN, 400), "y": rng.random(400) < 0.3}
        )
        self.image, self.title = col("ad_id").key(space="image"), col("ad_id").key(space="title")
        sparse = {"user": col("user"), "ad_image": self.image, "title": self.title}
        features = cb.FeatureSet(label=col("y"), sparse=sparse)
        self.plan = cb.compile(cb.View(log, name="log"), features, device="cpu", threads=1)
        self.images = self.encoded("images", KNOWN, dtype="float16").file
        self.titles = self.encoded("titles", KNOWN).file
        self.run = self.fitted()
        self.folder = create(place / "model", self.plan, self.run, context=["user"], quantize=False)

    def encoded(self, what: str, count: int, encoder: Any = None, **options: Any) -> Any:
        """The vector file of the first ads, by several threads and in batches."""
        view, column = cb.View(self.ads.slice(0, count)), what.removesuffix("s")
        made = encoder or (pixels() if what == "images" else letters())
        key = self.image if what == "images" else self.title
        path = self.place / f"{what}{count}{options.get('dtype', '')}{made.name}.ctrvec"
        return cb.tables.encode(path, view, made, key=key, column=column, batch_size=7, threads=3, **options)

    def fitted(self, images: Any = None) -> cb.Run:
        torch.manual_seed(1)
        tables = {
            "ad_image": cb.tables.ModelServer(images or self.images, cb.tables.ImageEmbedding(WIDE, (8,), 4)),
            "title": cb.tables.ModelServer(self.titles, cb.tables.ImageEmbedding(5, (8,), 4)),
            "*": cb.MemoryTable(4, threads=1),
        }
        return cb.Trainer(cb.models.DCNv2(self.plan.schema, dim=4, hidden=(8,)), tables, threads=1).fit(
            self.plan, batch_size=100
        )

    def served(self, **options: Any) -> ServedModel:
        given = {"encoders": {"ad_image": pixels(), "title": letters()}, **options}
        made = open_served(ModelFolder.open(self.folder.folder), **given)
        assert isinstance(made, ServedModel)
        return made

    def body(self, *ads: int, **objects: Any) -> dict[str, Any]:
        return {"context": {"user": 3}, "candidates": [{"ad_id": ad} for ad in ads], "objects": objects}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("raw"))


def ask(served: ServedModel, body: dict[str, Any]) -> np.ndarray:
    return served.score(served.reader.from_json(orjson.dumps(body)))[0]


def sent(data: bytes) -> dict[str, str]:
    return {"image": base64.b64encode(data).decode()}


def test_an_encoder_gives_the_bits_of_the_vector_file_whatever_threads_and_batches(world: World) -> None:
    whole = cb.tables.encode(
        world.place / "one.ctrvec",
        cb.View(world.ads),
        pixels(),
        key=world.image,
        column="image",
        batch_size=64,
        threads=1,
    ).file
    few = world.encoded("images", ADS).file
    rows = few.read(np.arange(ADS))
    assert np.array_equal(rows, whole.read(np.arange(ADS)))
    raw = RawEncoder(pixels())
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        raw.items._kept.clear()
        assert all(np.array_equal(raw.vector(Raw("image", picture(ad)), "an image"), rows[ad]) for ad in range(ADS))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert few.encoder == pixels().facts == whole.encoder
    assert world.titles.encoder == letters().facts


def test_unseen_images_and_texts_are_scored_as_if_the_vector_file_had_them(world: World) -> None:
    served, ads = world.served(), [KNOWN, KNOWN + 1, 3]
    blind = ask(served, world.body(*ads))
    seen = ask(
        served,
        world.body(
            *ads,
            ad_image={str(ad): sent(picture(ad)) for ad in ads},
            title={str(ad): {"text": title(ad)} for ad in ads[:2]},
        ),
    )
    images = world.encoded("images", ADS, dtype="float16").file
    titles = world.encoded("titles", ADS).file
    vectors = world.served(encoders=None)
    listed = world.body(
        *ads,
        ad_image={str(ad): images.read(np.array([ad]))[0].tolist() for ad in ads},
        title={str(ad): titles.read(np.array([ad]))[0].tolist() for ad in ads[:2]},
    )
    assert np.array_equal(seen, ask(vectors, listed))
    assert (seen[:2] != blind[:2]).all()
    assert seen[2] == blind[2]  # it has published vectors, so its image is not even decoded
    assert served.objects()["encoded"] == 4
    assert "encoded" not in vectors.objects()


def test_equal_images_are_encoded_once_and_what_is_kept_is_bounded(world: World) -> None:
    served = world.served()
    for ad in (NEW, NEW + 1, NEW):
        ask(served, world.body(ad, ad_image={str(ad): sent(picture(1))}))
    assert served.objects()["encoded"] == 1
    items = EncodedItems(pixels(), kept_bytes=3 * (4 * WIDE + 256))
    for seed in (1, 2, 3, 4, 4, 1):
        items.vector(picture(seed))
    assert (items.encoded, len(items)) == (5, 3)


def bytes_of(*values: bytes) -> np.ndarray:
    return np.array([*values, None], object)[:-1]


def test_tensors_carry_images_and_texts(world: World) -> None:
    served = world.served()
    images = {str(NEW): sent(picture(40)), str(NEW + 1): sent(picture(41))}
    expected = ask(served, world.body(NEW, NEW + 1, ad_image=images, title={str(NEW): {"text": "ooo"}}))
    tensors = {
        "user": np.array([3]),
        "ad_id": np.array([NEW, NEW + 1]),
        "objects.ad_image": bytes_of(picture(40), picture(41)),
        "objects.ad_image.id": np.array([NEW, NEW + 1]),
        "objects.title": bytes_of(b"ooo").reshape(1, 1),
        "objects.title.id": bytes_of(str(NEW).encode()),
    }
    other = world.served()
    assert np.array_equal(other.score(other.reader.from_tensors(tensors))[0], expected)
    with pytest.raises(
        DataError, match=r"expected \[n, width\] and \[n\], or \[n\] and \[n\] if the objects are images"
    ):
        other.reader.from_tensors({**tensors, "objects.title.id": np.array([1, 2])})
    with pytest.raises(DataError, match=r"object b?'?1000000000.* of 'title', a text of 2 bytes, is not UTF-8"):
        other.score(other.reader.from_tensors({**tensors, "objects.title": bytes_of(b"\xff\xfe")}))


def png_of(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({"ad_image": {"7": {"image": "a"}}}, "object '7' of 'ad_image': its image is not base64"),
        ({"ad_image": {"7": {"image": "AA=A"}}}, "its image is not base64"),
        ({"ad_image": {"7": {"image": "AAAA\n"}}}, "its image is not base64"),
        ({"ad_image": {"7": {"image": 7}}}, r"must be a list of numbers, \{\"image\": BASE64\} or"),
        ({"ad_image": {"7": {}}}, "got an object with nothing"),
        ({"ad_image": {"7": {"imag": ""}}}, "got an object with 'imag'"),
        ({"ad_image": {"7": {"image": "", "text": ""}}}, "got an object with 'image', 'text'"),
        (
            {"ad_image": {"7": {"text": "red"}}},
            "object '7' of 'ad_image' is sent as 'text', but the encoder of this field takes 'image'",
        ),
        ({"title": {"7": sent(b"red")}}, "is sent as 'image', but the encoder of this field takes 'text'"),
        ({"user": {"7": sent(b"red")}}, "does not compute vectors for 'user'"),
        (
            {"ad_image": {"7": sent(b"GIF89a")}},
            "object '7' of 'ad_image', an image of 6 bytes, is not a JPEG, PNG or WebP",
        ),
        ({"ad_image": {"7": sent(b"")}}, "an image of 0 bytes, is not a JPEG"),
        ({"ad_image": {"7": sent(picture(1)[:900])}}, "an image of 900 bytes, (is not|cannot be)"),
        (
            {"ad_image": {"7": sent(png_of(300))}},
            "has 300 x 300 pixels, but only images of 1 to 50,000 pixels are decoded",
        ),
        ({"ad_image": {str(k): sent(b"x") for k in range(4)}}, "has 4 images and texts; this server encodes at most 3"),
    ],
)
def test_what_is_no_image_or_text_is_refused_with_its_id_and_field(world: World, objects: Any, words: str) -> None:
    served = world.served(most_images=3, most_pixels=50_000)
    named = {field: {str(NEW + int(i)): one for i, one in some.items()} for field, some in objects.items()}
    with pytest.raises(DataError, match=words.replace("'7'", f"'{NEW + 7}'")):
        ask(served, world.body(NEW + 7, **named))
    assert served.objects()["remembered"] == served.objects()["encoded"] == 0


def test_one_object_with_two_images_is_refused(world: World) -> None:
    twice = {str(NEW): sent(picture(1)), f"+{NEW}": sent(picture(2))}
    with pytest.raises(DataError, match="not a whole number from -2"):
        ask(world.served(), world.body(NEW, ad_image=twice))
    twice = {str(NEW): sent(picture(1)), f"0{NEW}": sent(picture(2))}
    with pytest.raises(DataError, match="occurs twice in the request with different contents"):
        ask(world.served(), world.body(NEW, ad_image=twice))


def test_a_module_that_fails_or_gives_another_width_is_told_with_the_object(world: World) -> None:
    def failing(image: Any) -> torch.Tensor:
        raise RuntimeError("no luck")

    served = world.served()
    raw = served.encoders.by_field["ad_image"]
    raw.encoder.prepare = failing
    with pytest.raises(DataError, match=r"of 'ad_image', an image of .* cannot be encoded: RuntimeError: no luck"):
        ask(served, world.body(NEW, ad_image={str(NEW): sent(picture(1))}))
    raw.encoder.prepare, raw.encoder.module = small, nn.Flatten()
    with pytest.raises(
        DataError, match=f"the vector of object '{NEW}' of 'ad_image' has 3072 numbers; expected {WIDE}"
    ):
        ask(served, world.body(NEW, ad_image={str(NEW): sent(picture(1))}))


def test_a_server_without_encoders_says_which_one_is_needed(world: World) -> None:
    with pytest.raises(DataError, match="without --encoder ad_image=WEIGHTS, the encoder 'pixels'"):
        ask(world.served(encoders=None), world.body(NEW, ad_image={str(NEW): sent(picture(1))}))


def test_encoders_that_did_not_make_the_vectors_are_refused_at_the_start(world: World, tmp_path: Path) -> None:
    for given, words in (
        ({"ad_imag": pixels()}, "nearest: 'ad_image'"),
        ({"user": pixels()}, "not a field of a Model Server.*; the model has 'ad_image', 'title'"),
        (
            {"ad_image": pixels(seed=1)},
            "is not the encoder that made the vectors of the model: SHA-256 of the weights is",
        ),
        ({"ad_image": pixels(name="other")}, "name is 'other', expected 'pixels'"),
        ({"ad_image": cb.tables.Encoder(Pixels(), name="pixels")}, "prepare is 'Crop"),
        ({"ad_image": letters()}, "items is 'text', expected 'image'"),
        (
            {"ad_image": "w.safetensors"},
            r"made by your own encoder 'pixels' \(module 'Pixels'\); define it in a job file",
        ),
    ):
        with pytest.raises((DataError, PlanError), match=words):
            world.served(encoders=given)
    plain = {"ad_id": np.arange(9), "image": np.zeros((9, WIDE), np.float32)}
    file = cb.tables.write_vectors(tmp_path / "plain.ctrvec", plain, key=world.image, vector="image")
    folder = create(tmp_path / "model", world.plan, world.fitted(file), context=["user"])
    with pytest.raises(PlanError, match="published without a description of their encoder, so the server cannot check"):
        open_served(folder, encoders={"ad_image": pixels()})
    made = open_served(folder)
    assert isinstance(made, ServedModel)
    with pytest.raises(DataError, match="the model does not say which encoder made the vectors of this field"):
        ask(made, world.body(NEW, ad_image={str(NEW): sent(picture(1))}))


def test_a_version_by_another_encoder_is_refused_and_the_old_one_goes_on(world: World, tmp_path: Path) -> None:
    served = world.served()
    body = world.body(NEW, ad_image={str(NEW): sent(picture(1))})
    before = ask(served, body)
    other = world.encoded("images", KNOWN, pixels(seed=5, name="other"))
    cb.publish.pack(world.fitted(other.file), tmp_path / "other.fbw", quantize=False)
    with pytest.raises(
        DataError, match="is not the encoder that made the vectors of the model: name is 'pixels', expected 'other'"
    ):
        served.take(tmp_path / "other.fbw", 2)
    assert np.array_equal(ask(served, body), before)
    assert served.version == 1


def test_built_in_encoders_are_known_by_their_name_and_the_weights_by_their_checksum(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(encoders.NAMED, "tiny", lambda: (module := Pixels(), module))
    monkeypatch.setattr(encoders.Crop, "__init__", lambda self: vars(self).update(size=32, resize=32))
    for seed in (0, 1):
        save_file(Pixels(seed).state_dict(), tmp_path / f"{seed}.safetensors")
    file = world.encoded("images", KNOWN, cb.tables.Encoder.named("tiny", tmp_path / "0.safetensors")).file
    folder = create(tmp_path / "model", world.plan, world.fitted(file), context=["user"])
    limits = Limits(images=2)
    server = Server.open(folder.folder, Settings(encoders={"ad_image": tmp_path / "0.safetensors"}, limits=limits))
    assert len(server.service.queue.threads) == 1  # an image takes too long for the event loop
    served = server.service.served
    request = served.reader.from_json(orjson.dumps(world.body(NEW, ad_image={str(NEW): sent(picture(1))})))
    assert np.isfinite(served.answer(request).scores).all()
    assert "ctrbox_objects_encoded_total 1" in server.service.prometheus()
    with pytest.raises(DataError, match="SHA-256 of the weights is"):
        open_served(folder, encoders={"ad_image": tmp_path / "1.safetensors"})
    with pytest.raises(PlanError, match="run folder; publish it"):
        open_served(ModelFolder(tmp_path, "run", (), ""), encoders={"ad_image": pixels()})


def test_a_job_s_encoders_and_those_of_the_command_line_come_together(tmp_path: Path) -> None:
    from types import SimpleNamespace

    mine = pixels()
    job: Any = SimpleNamespace(encoders=encoders_of_job({"ad_image": mine}, tmp_path))
    assert encoders_of(job, {"title": "w.pt"}) == {"ad_image": mine, "title": "w.pt"}
    assert encoders_of(None, {}) == {}
    with pytest.raises(Mistake, match="the job also defines an encoder for field 'ad_image'"):
        encoders_of(job, {"ad_image": "w.pt"})
    with pytest.raises(Mistake, match="must be a dict from fields to encoders"):
        encoders_of_job({"ad_image": Pixels()}, tmp_path)
