"""Raw images and texts become a vector file: the same one after a kill, with a list of what cannot be decoded."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.vectors import decode_image, encoders
from ctrbox.embed.vectors import encode as encoding
from ctrbox.embed.vectors.encoders import Crop, load_weights
from ctrbox.errors import DataError, PlanError, SourceError, WriteError

Image = pytest.importorskip("PIL.Image", reason="Pillow, with which images are decoded, is not installed")

KEY = col("name").key(space="image")


class Tiny(nn.Module):
    """A convolution that takes a moment: four numbers of each image."""

    def __init__(self, width: int = 4, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, width, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(images).mean((2, 3))


def small(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8)), np.uint8)).permute(2, 0, 1).float() / 255


def tiny(**options: Any) -> cb.tables.Encoder:
    return cb.tables.Encoder(Tiny(**options), small, name="tiny")


def picture(seed: int, size: tuple[int, int] = (12, 9), mode: str = "RGB") -> Any:
    channels = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), np.uint8)
    return Image.fromarray(pixels, mode) if mode == "CMYK" else Image.fromarray(pixels)


def saved(image: Any, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def folder_of(place: Path, count: int = 10) -> Path:
    place.mkdir()
    for k in range(count):
        format = ("PNG", "JPEG", "WEBP")[k % 3]
        (place / f"ad{k}.{format.lower()}").write_bytes(
            saved(picture(k % 7), format, **({"lossless": True} if k % 3 == 2 else {}))
        )
    return place


def key_of(name: str) -> np.ndarray:
    return np.asarray(cb.compute({"key": KEY}, pa.table({"name": [name]}))["key"].to_numpy()).view(np.int64)


def vector_of(file: cb.tables.VectorFile, name: str) -> np.ndarray:
    return file.read(file.find(key_of(name)))[0]


def test_each_image_has_the_vector_that_the_module_gives_for_its_pixels(tmp_path: Path) -> None:
    folder, encoder = folder_of(tmp_path / "images"), tiny()
    done = cb.tables.encode(tmp_path / "a.ctrvec", folder, encoder, key=KEY, batch_size=3)
    assert (done.items, len(done.file), done.skipped) == (10, 10, {})
    assert done.report.read_text() == ""
    for k in range(10):
        (path,) = folder.glob(f"ad{k}.*")
        with torch.inference_mode():
            wanted = encoder.module(small(Image.open(path).convert("RGB"))[None])[0].numpy()
        np.testing.assert_allclose(vector_of(done.file, f"ad{k}"), wanted, rtol=1e-5, atol=1e-6)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_equal_images_are_encoded_once(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name, seed in (("a", 1), ("b", 2), ("c", 1), ("d", 1)):
        (tmp_path / "images" / f"{name}.png").write_bytes(saved(picture(seed)))
    done = cb.tables.encode(tmp_path / "a.ctrvec", tmp_path / "images", tiny(), key=KEY)
    assert (done.items, done.encoded, len(done.file)) == (4, 2, 4)
    assert np.array_equal(vector_of(done.file, "a"), vector_of(done.file, "d"))


def test_column_of_a_parquet_file_gives_the_vectors_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images")
    paths = sorted(folder.iterdir(), key=lambda path: int(path.stem[2:]))
    table = pa.table({"name": [p.stem for p in paths], "image": [p.read_bytes() for p in paths], "other": range(10)})
    pq.write_table(table, tmp_path / "ads.parquet")
    one = cb.tables.encode(tmp_path / "a.ctrvec", folder, tiny(), key=KEY, threads=1)
    two = cb.tables.encode(
        tmp_path / "b.ctrvec", cb.View(tmp_path / "ads.parquet"), tiny(), key=KEY, column="image", threads=3
    )
    assert (tmp_path / "a.ctrvec").read_bytes() == (tmp_path / "b.ctrvec").read_bytes()
    assert one.file.fingerprint == two.file.fingerprint


def bad_images() -> dict[str, tuple[bytes, str]]:
    frames = [picture(1), picture(2)]
    sound = saved(picture(3, (64, 64)), "JPEG")
    return {
        "empty.png": (b"", "no image"),
        "text.png": (b"not an image at all", "no image"),
        "gif.png": (saved(picture(1).convert("P"), "GIF"), "no image"),
        "cut.jpg": (sound[: len(sound) // 2], "damaged"),
        "head.jpg": (sound[:20], "damaged|no image"),
        "cut.png": (saved(picture(3, (64, 64)))[:-3000], "damaged"),
        "cmyk.jpg": (saved(picture(4, mode="CMYK"), "JPEG"), "mode"),
        "deep.png": (saved(Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8))), "mode"),
        "moving.webp": (saved(frames[0], "WEBP", save_all=True, append_images=frames[1:]), "animated"),
        "moving.png": (saved(frames[0], "PNG", save_all=True, append_images=frames[1:]), "animated"),
        "huge.png": (saved(Image.new("1", (3000, 3000))), "pixels"),
        "bytes.png": (saved(picture(5, (300, 300))), "bytes"),
    }


def test_what_cannot_be_decoded_is_listed_and_the_rest_is_encoded(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", 4)
    for name, (data, _) in bad_images().items():
        (folder / name).write_bytes(data)
    (folder / "inner").mkdir()
    (folder / "inner" / "gray.png").write_bytes(saved(picture(6, mode="L")))
    (folder / "inner" / "glass.png").write_bytes(saved(picture(6, mode="RGBA")))
    (folder / ".hidden.png").write_bytes(b"")
    done = cb.tables.encode(tmp_path / "a.ctrvec", folder, tiny(), key=KEY, most_pixels=1_000_000, most_bytes=100_000)
    listed = [json.loads(line) for line in done.report.read_text().splitlines()]
    assert {line["item"] for line in listed} == set(bad_images())
    for line in listed:
        assert line["cause"] in bad_images()[line["item"]][1].split("|"), line
    assert (done.items, len(done.file)) == (4 + 2 + len(bad_images()), 6)
    assert sum(done.skipped.values()) == len(bad_images())


def test_pixels_are_bounded_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of this image tells 60,000 x 60,000 pixels; decoding would take 10 GB."""
    data = bytearray(saved(Image.new("L", (8, 8))))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    import zlib

    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    with pytest.raises(decode_image.Refused, match=r"60,000 x 60,000 pixels|exceeds limit") as caught:
        decode_image.decode(bytes(data))
    assert caught.value.cause == "pixels"


def test_nothing_to_encode_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(SourceError, match="holds no files"):
        cb.tables.encode(tmp_path / "a.ctrvec", tmp_path / "images", tiny(), key=KEY)
    (tmp_path / "images" / "a.png").write_bytes(b"?")
    with pytest.raises(
        DataError, match=r"no vector could be computed for any of the 1 items; the first, a.png, is not a JPEG"
    ):
        cb.tables.encode(tmp_path / "a.ctrvec", tmp_path / "images", tiny(), key=KEY)
    with pytest.raises(SourceError, match="is not a folder; expected a folder of images"):
        cb.tables.encode(tmp_path / "a.ctrvec", tmp_path / "nowhere", tiny(), key=KEY)
    assert not (tmp_path / "a.ctrvec").exists()


def stopping_after(encoder: cb.tables.Encoder, batches: int) -> cb.tables.Encoder:
    """Let the encoder raise at a batch, as a crash would."""
    inner, left = encoder.encode, [batches]

    def encode(inputs: Any, pool: Any = None) -> np.ndarray:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return inner(inputs, pool)

    encoder.encode = encode  # type: ignore[method-assign]
    return encoder


@pytest.mark.parametrize("tail", [b"", b"torn record", b"\0" * 200])
def test_stopped_encoding_goes_on_and_gives_the_same_bytes(tmp_path: Path, tail: bytes) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for k in range(23):
        (folder / f"ad{k}.png").write_bytes(saved(picture(k % 19)) if k % 6 else b"broken")
    whole = cb.tables.encode(tmp_path / "a.ctrvec", folder, tiny(), key=KEY, batch_size=4)
    encoder = stopping_after(tiny(), 2)
    with pytest.raises(KeyboardInterrupt):
        cb.tables.encode(tmp_path / "b.ctrvec", folder, encoder, key=KEY, batch_size=4)
    kept = tmp_path / ".b.ctrvec.encoding" / "vectors"
    with kept.open("ab") as file:
        file.write(tail)
    assert not (tmp_path / "b.ctrvec").exists()
    with pytest.raises(DataError, match="an unfinished encoding that used another encoder"):
        cb.tables.encode(tmp_path / "b.ctrvec", folder, tiny(seed=1), key=KEY, batch_size=4)
    with pytest.raises(
        DataError, match="an unfinished encoding that used another encoder, prepare function, batch size"
    ):
        cb.tables.encode(tmp_path / "b.ctrvec", folder, tiny(), key=KEY, batch_size=5)
    encoder = tiny()
    done = cb.tables.encode(tmp_path / "b.ctrvec", folder, encoder, key=KEY, batch_size=4)
    assert (done.resumed, done.encoded + done.resumed) == (8, whole.encoded)
    assert (tmp_path / "b.ctrvec").read_bytes() == (tmp_path / "a.ctrvec").read_bytes()
    assert done.report.read_bytes() == whole.report.read_bytes()
    assert not kept.parent.exists()


def test_an_encoding_does_not_go_on_with_another_prepare_of_the_same_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", 9)

    def encoder(by: float) -> cb.tables.Encoder:
        def prepare(image: Any) -> torch.Tensor:
            return small(image) * by

        return cb.tables.Encoder(Tiny(), prepare, name="tiny")

    with pytest.raises(KeyboardInterrupt):
        cb.tables.encode(tmp_path / "b.ctrvec", folder, stopping_after(encoder(1.0), 2), key=KEY, batch_size=2)
    assert encoder(1.0).facts == encoder(2.0).facts
    with pytest.raises(
        DataError, match="an unfinished encoding that used another encoder, prepare function, batch size or"
    ):
        cb.tables.encode(tmp_path / "b.ctrvec", folder, encoder(2.0), key=KEY, batch_size=2)
    assert cb.tables.encode(tmp_path / "b.ctrvec", folder, encoder(1.0), key=KEY, batch_size=2).resumed == 4


@pytest.mark.slow  # a process that imports torch takes seconds; the test above stops inside one
def test_killed_process_leaves_vectors_that_the_next_one_takes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", 9)
    code = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
        from tests.embed.vectors.test_encode import KEY, cb, tiny
        encoder = tiny()
        inner, left = encoder.encode, [2]
        def encode(inputs, pool):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return inner(inputs, pool)
        encoder.encode = encode
        cb.tables.encode("b.ctrvec", "images", encoder, key=KEY, batch_size=2)
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=dict(os.environ))
    assert found.returncode == -signal.SIGKILL
    done = cb.tables.encode(tmp_path / "b.ctrvec", folder, tiny(), key=KEY, batch_size=2)
    assert done.resumed == 4
    cb.tables.encode(tmp_path / "a.ctrvec", folder, tiny(), key=KEY, batch_size=2)
    assert (tmp_path / "b.ctrvec").read_bytes() == (tmp_path / "a.ctrvec").read_bytes()


def test_torch_divides_no_operation_in_the_threads_of_an_encoding() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with encoders.undivided(2) as pool:
            pool.submit(lambda: torch.rand(100_000).sum()).result()
            assert [pool.submit(torch.get_num_threads).result() for _ in range(4)] == [1, 1, 1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_two_encodings_into_one_file_at_a_time_are_refused(tmp_path: Path) -> None:
    from ctrbox.embed.vectors.resume_encoding import EncodedSoFar

    first = EncodedSoFar(tmp_path / "work", dict, 4)
    with pytest.raises(WriteError, match="another process is writing the vectors of an encoding"):
        EncodedSoFar(tmp_path / "work", dict, 4)
    first.close(remove=True)
    assert not (tmp_path / "work").exists()


def test_vectors_are_kept_while_the_identity_is_still_computed(tmp_path: Path) -> None:
    from ctrbox.embed.vectors.resume_encoding import EncodedSoFar

    known = threading.Event()

    def identity() -> dict[str, Any]:
        known.wait(30)
        return {"encoder": "tiny"}

    vectors = np.arange(8, dtype=np.float32).reshape(2, 4)
    first = EncodedSoFar(tmp_path / "work", identity, 2, patient=False)
    first.add([b"a" * 32, b"b" * 32], vectors)
    first.add([b"c" * 32, b"d" * 32], vectors + 1)
    assert np.array_equal(first.vectors(np.array([3, 0])), [vectors[1] + 1, vectors[0]])
    assert not (tmp_path / "work" / "state.json").exists()
    known.set()
    first.close(remove=False)
    second = EncodedSoFar(tmp_path / "work", identity, 2)
    assert list(second.places) == [letter * 32 for letter in (b"a", b"b", b"c", b"d")]
    assert np.array_equal(second.vectors(np.array([3, 0])), [vectors[1] + 1, vectors[0]])
    second.close(remove=True)


def test_files_are_those_that_a_walk_finds_and_names_lose_their_ending(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.", "c..", "d.tar.gz", "e", "in.ner/f.png", "in.ner/.g.png", "_h/i.png", "j k.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link.png").symlink_to(tmp_path / "a.jpg")
    (tmp_path / "folder.png").symlink_to(tmp_path / "in.ner")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    found = {str(item.data): item.facts for item in encoding._of_folder(tmp_path)}
    expected = ["a.jpg", "b.", "c..", "d.tar.gz", "e", "in.ner/f.png", "j k.png", "link.png"]
    paths = {below: tmp_path / below for below in expected}
    assert found == {str(path): {"name": path.stem, "path": below} for below, path in paths.items()}


def test_width_that_differs_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "images", 4)
    with pytest.raises(DataError, match="'tiny' returned vectors of 4 numbers; expected 5"):
        cb.tables.encode(tmp_path / "a.ctrvec", folder, tiny(), key=KEY, width=5)

    class Flat(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images

    with pytest.raises(
        DataError, match=r"'Flat' returned shape \(1, 3, 8, 8\) for 1 input\(s\); expected a tensor with one row"
    ):
        cb.tables.encode(tmp_path / "b.ctrvec", folder, cb.tables.Encoder(Flat(), small), key=KEY)


def test_two_images_of_one_key_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "a.webp"):
        (tmp_path / "images" / name).write_bytes(saved(picture(1), name[2:].upper()))
    (tmp_path / "images" / "Z.png").write_bytes(b"no image")  # is skipped, and comes first
    with pytest.raises(DataError, match=r"has two vectors, of a\.png and of a\.webp; expected one per key$"):
        cb.tables.encode(tmp_path / "v.ctrvec", tmp_path / "images", tiny(), key=KEY)
    (tmp_path / "images" / "a.webp").rename(tmp_path / "images" / "b.webp")
    assert cb.tables.encode(tmp_path / "v.ctrvec", tmp_path / "images", tiny(), key=KEY, batch_size=32).items == 3


def test_an_item_without_a_key_is_named_by_its_row_in_the_input(tmp_path: Path) -> None:
    ads = pa.table({"ad": [1, 2, 3, None, 5], "title": ["a", None, "b", "c", "d"]})
    pq.write_table(ads, tmp_path / "ads.parquet")
    encoder = cb.tables.Encoder(Letters(), kind="text")
    for data, row in ((ads, "memory row 3"), (tmp_path / "ads.parquet", f"{tmp_path}/ads.parquet row 3")):
        with pytest.raises(DataError) as told:
            cb.tables.encode(
                tmp_path / "v.ctrvec", cb.View(data), encoder, key=col("ad").key(space="title"), column="title"
            )
        assert str(told.value) == f"this encoding: the key of {row} is null"


class Letters(nn.Module):
    """Maps strings to vectors: how often each of three letters occurs."""

    def forward(self, texts: list[str]) -> torch.Tensor:
        return torch.tensor([[float(text.count(letter)) for letter in "abc"] for text in texts])


def test_texts_are_encoded_by_a_module_that_takes_strings(tmp_path: Path) -> None:
    table = pa.table({"ad_id": [1, 2, 3, 4, 5], "title": ["abc", None, "", "cab cab", "abc"]})
    key = col("ad_id").key(space="title")
    encoder = cb.tables.Encoder(Letters(), kind="text")
    done = cb.tables.encode(tmp_path / "a.ctrvec", cb.View(table), encoder, key=key, column="title")
    assert (done.items, done.encoded, done.skipped) == (5, 3, {"null": 1})
    keys = np.asarray(cb.compute({"key": key}, table)["key"].to_numpy()).view(np.int64)
    places = done.file.find(keys)
    assert places[1] == -1
    assert done.file.read(places[[0, 2, 3, 4]]).tolist() == [[1, 1, 1], [0, 0, 0], [2, 2, 2], [1, 1, 1]]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"encoder": Tiny()}, "encoder must be a cb.tables.Encoder, got a Tiny"),
        ({"key": "name"}, "key must be an expression"),
        ({"dtype": "int8"}, "dtype must be float32 or float16"),
        ({"batch_size": 0}, "batch_size="),
        ({"data": {"a": 1}}, "expected a folder of images, or a cb.View with images or texts, got a dict"),
        ({"data": cb.View(pa.table({"name": ["a"]}))}, "name the column"),
        ({"data": cb.View(pa.table({"name": ["a"]})), "column": "imag"}, "has no column 'imag'"),
        ({"data": cb.View(pa.table({"name": [1]})).fill(name=0), "column": "name"}, "has steps"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    given = {"data": tmp_path, "encoder": tiny(), "key": KEY, **options}
    with pytest.raises(PlanError, match=told):
        cb.tables.encode(tmp_path / "a.ctrvec", given.pop("data"), given.pop("encoder"), **given)


def test_weights_are_read_from_local_files_of_tensors_that_fit(tmp_path: Path) -> None:
    module, state = Tiny(seed=1), Tiny(seed=2).state_dict()
    save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        module = Tiny(seed=1)
        load_weights(module, tmp_path / name)
        assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    torch.save(Tiny(), tmp_path / "code.pt")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    torch.save([1], tmp_path / "list.pt")
    save_file({"conv.weight": state["conv.weight"]}, tmp_path / "few.safetensors")
    save_file({**state, "more": torch.zeros(1)}, tmp_path / "more.safetensors")
    save_file({**state, "conv.bias": torch.zeros(9)}, tmp_path / "shape.safetensors")
    save_file({**state, "conv.bias": torch.full((4,), float("nan"))}, tmp_path / "nan.safetensors")
    for name, told in (
        ("code.pt", "cannot be read as weights"),
        ("junk.safetensors", "cannot be read as weights"),
        ("list.pt", "holds a list, expected a dict"),
        ("few.safetensors", "lacks 'conv.bias'"),
        ("more.safetensors", "has an unknown name, 'more'"),
        ("shape.safetensors", r"'conv.bias' is \(9,\), expected \(4,\)"),
        ("nan.safetensors", "NaN or infinite"),
        ("none.pt", "is not a file"),
    ):
        with pytest.raises((SourceError, DataError), match=told):
            load_weights(module, tmp_path / name)


def test_crop_gives_tensors_of_one_shape_for_every_form_of_image() -> None:
    for size in ((224, 224), (1, 1), (5000, 3), (3, 5000), (640, 480)):
        assert Crop()(Image.new("RGB", size)).shape == (3, 224, 224)
    assert Crop(40, 8)(Image.new("RGB", (300, 200))).shape == (
        3,
        40,
        40,
    )  # larger than four times the resized picture
    gray = Crop(8, 8)(Image.new("RGB", (8, 8), (124, 116, 104)))
    assert gray.abs().max() < 0.01


def test_vgg16_has_the_names_of_the_usual_weight_files_and_is_cut_at_fc6(tmp_path: Path) -> None:
    with torch.device("meta"):
        full, cut = encoders._vgg16()
    parts = list(cut.children())
    assert parts[0] is full.features
    assert parts[3] is full.classifier[0]
    assert [type(part).__name__ for part in parts[1:]] == ["AdaptiveAvgPool2d", "Flatten", "Linear", "ReLU"]
    assert torch.device("meta") == next(full.parameters()).device
    shapes = {name: tuple(value.shape) for name, value in full.state_dict().items()}
    assert shapes["features.0.weight"] == (64, 3, 3, 3)
    assert shapes["features.28.weight"] == (512, 512, 3, 3)
    assert shapes["classifier.0.weight"] == (4096, 25088)
    assert shapes["classifier.6.bias"] == (1000,)
    assert len(shapes) == 32
    with pytest.raises(PlanError, match="encoder 'vgg' is not known; expected vgg16-fc6"):
        cb.tables.Encoder.named("vgg", tmp_path / "a.safetensors")


def test_command_encodes_a_folder_and_a_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from ctrbox.cli.main import app

    monkeypatch.setitem(encoders.NAMED, "tiny", lambda: (module := Tiny(), module))
    save_file(Tiny(seed=3).state_dict(), tmp_path / "w.safetensors")
    folder = tmp_path / "images"
    folder.mkdir()
    rows = {f"{k}": saved(picture(k)) for k in range(3)}
    for name, data in rows.items():
        (folder / f"{name}.png").write_bytes(data)
    (folder / "9.png").write_bytes(b"?")
    pq.write_table(pa.table({"ad": [0, 1, 2], "image": list(rows.values())}), tmp_path / "ads.parquet")
    said = ["--encoder", "tiny", "--weights", str(tmp_path / "w.safetensors"), "--json"]
    run = CliRunner().invoke(app, ["vectors", "encode", str(folder), "-o", str(tmp_path / "a.ctrvec"), *said])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout.splitlines()[-1])["skipped"] == {"no image": 1}
    other = ["vectors", "encode", str(tmp_path / "ads.parquet"), "--key", "ad", "-o", str(tmp_path / "b.ctrvec"), *said]
    assert CliRunner().invoke(app, other).exit_code == 0
    assert (tmp_path / "a.ctrvec").read_bytes() == (tmp_path / "b.ctrvec").read_bytes()
    whole = ["vectors", "encode", str(folder), "--ids", "int", "-o", str(tmp_path / "c.ctrvec"), *said]
    assert CliRunner().invoke(app, whole).exit_code == 0
    keys = cb.compute({"key": col("ad").key(space="image")}, pa.table({"ad": [0, 1, 2]}))["key"].to_numpy()
    assert (cb.tables.VectorFile(tmp_path / "c.ctrvec").find(np.asarray(keys).view(np.int64)) >= 0).all()


def test_progress_and_times_are_told(tmp_path: Path) -> None:
    folder, told = folder_of(tmp_path / "images", 5), []
    (folder / "bad.png").write_bytes(b"?")
    began = time.perf_counter()
    done = cb.tables.encode(tmp_path / "a.ctrvec", folder, tiny(), key=KEY, threads=1, progress=told.append)
    took = time.perf_counter() - began
    assert told == [1, 2, 3, 4, 5, 6]
    assert done.report == tmp_path / "a.ctrvec.skipped.jsonl"
    assert list(done.seconds) == ["reading", "decoding", "transform", "network", "writing"]
    assert all(0 < spent < took for spent in done.seconds.values())
    assert (done.items, done.encoded, done.resumed, done.skipped) == (6, 5, 0, {"no image": 1})
    assert json.loads(done.report.read_text()) == {
        "item": "bad.png",
        "cause": "no image",
        "detail": "is not a JPEG, PNG or WebP image; it begins with b'?'",
    }


def test_a_view_without_rows_has_nothing_to_encode(tmp_path: Path) -> None:
    view = cb.View(pa.table({"name": pa.array([], pa.utf8())}))
    with pytest.raises(DataError, match=r"no vector could be computed for any of the 0 items$"):
        cb.tables.encode(tmp_path / "a.ctrvec", view, texts(), key=KEY, column="name")


def texts() -> cb.tables.Encoder:
    return cb.tables.Encoder(Letters(), kind="text", name="letters")


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8(), pa.dictionary(pa.int32(), pa.utf8())])
@pytest.mark.parametrize("rows", [1, 3])
def test_texts_of_every_type_and_number_of_chunks_have_their_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, rows: int
) -> None:
    monkeypatch.setattr(encoding, "CHUNK", rows)
    monkeypatch.setattr(encoding, "WRITTEN", rows)
    table = pa.table({"title": pa.array(["a", "ab", None, "c", "", "a"], kind), "ad": [1, 2, 3, 4, 5, 6]})
    key = col("ad").key(space="title")
    done = cb.tables.encode(tmp_path / "a.ctrvec", cb.View(table), texts(), key=key, column="title", batch_size=2)
    keys = np.asarray(cb.compute({"key": key}, table)["key"].to_numpy()).view(np.int64)
    places = done.file.find(keys)
    assert (places >= 0).tolist() == [True, True, False, True, True, True]
    there = done.file.read(places[places >= 0])
    assert there.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert (done.items, done.encoded, done.skipped) == (6, 4, {"null": 1})
    (line,) = done.report.read_text().splitlines()
    assert json.loads(line)["detail"] == "is null"


def test_a_key_may_be_made_of_several_columns_and_must_be_one(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "title": ["ab", "c"], "number": [3, 4]})
    key = cb.cross("a", "b").key(space="t")
    done = cb.tables.encode(tmp_path / "a.ctrvec", cb.View(table), texts(), key=key, column="title")
    keys = np.asarray(cb.compute({"key": key}, table)["key"].to_numpy()).view(np.int64)
    assert done.file.read(done.file.find(keys)).tolist() == [[1, 1, 0], [0, 0, 1]]
    for given, column, says in (
        (
            col("b"),
            "title",
            r"the key expression gives .*string; expected keys, such as col\('b'\)\.key\(space='image'\)",
        ),
        (key, "number", "column 'number' of view .* is int64; expected bytes or text"),
        (cb.cross("a", "c").key(space="t"), "title", "has no column 'c'"),
    ):
        with pytest.raises(PlanError, match=says):
            cb.tables.encode(tmp_path / "b.ctrvec", cb.View(table), texts(), key=given, column=column)
    plain = cb.tables.encode(tmp_path / "c.ctrvec", cb.View(table), texts(), key=col("a"), column="title")
    assert plain.file.keys.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 65_537}, "batch_size= must be a whole number from 1 to 65,536, got 65537"),
        ({"threads": 0}, "threads= must be a whole number from 1 to 256, got 0"),
        ({"threads": 257}, "threads= must be a whole number from 1 to 256, got 257"),
        ({"most_bytes": 0}, "most_bytes= must be a whole number from 1 to 2,147,483,648, got 0"),
        ({"most_pixels": (1 << 31) + 1}, "most_pixels= must be a whole number from 1 to 2,147,483,648, got 2147483649"),
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        cb.tables.encode(tmp_path / "a.ctrvec", tmp_path, tiny(), key=KEY, **options)


def test_a_name_that_is_not_utf8_has_no_key(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for shown in (b"a.png", b"\xff.png"):
        Path(os.fsdecode(bytes(tmp_path / "images") + b"/" + shown)).write_bytes(saved(picture(1)))
    done = cb.tables.encode(tmp_path / "a.ctrvec", tmp_path / "images", tiny(), key=KEY)
    assert (done.items, done.encoded, done.skipped) == (2, 1, {"name": 1})
    (line,) = map(json.loads, done.report.read_text().splitlines())
    assert line["detail"] == "has a name that is not UTF-8, so it has no key; rename it"


def test_vectors_of_another_width_later_are_refused(tmp_path: Path) -> None:
    class Growing(nn.Module):
        def forward(self, texts: list[str]) -> torch.Tensor:
            return torch.ones(1, len(texts[0]))

    view = cb.View(pa.table({"title": ["ab", "cd", "xyz"], "ad": [1, 2, 3]}))
    encoder = cb.tables.Encoder(Growing(), kind="text")
    with pytest.raises(DataError, match="'Growing' returned vectors of 3 numbers; expected 2 numbers"):
        cb.tables.encode(tmp_path / "a.ctrvec", view, encoder, key=col("ad"), column="title", batch_size=1)
    with pytest.raises(DataError, match="'Growing' returned vectors of 2 numbers; expected 3 numbers"):
        cb.tables.encode(tmp_path / "a.ctrvec", view, encoder, key=col("ad"), column="title", batch_size=1, width=3)


# ---- single images


@pytest.mark.parametrize(
    ("size", "to", "left", "top"),
    [
        ((20, 10), (8, 4), 2, 0),  # the shorter side becomes 4 pixels, then the middle 4 x 4
        ((10, 25), (4, 10), 0, 3),
        ((2, 2), (4, 4), 0, 0),
        ((10, 40), (4, 16), 0, 6),
    ],
)
def test_the_middle_of_an_image_is_cropped_after_it_was_resized(
    size: tuple[int, int], to: tuple[int, int], left: int, top: int
) -> None:
    image = picture(3, size)
    expected = image.resize(to, 2).crop((left, top, left + 4, top + 4))
    assert np.array_equal(np.array(decode_image.cropped(image, 4, 4)), np.array(expected))


@pytest.mark.parametrize(("size", "box"), [((10, 43), (0, 11, 10, 31)), ((44, 10), (12, 0, 32, 10))])
def test_the_middle_of_a_very_long_image_is_cut_out_before_it_is_resized(
    size: tuple[int, int], box: tuple[int, int, int, int]
) -> None:
    image = picture(4, size)
    expected = decode_image.cropped(image.crop(box), 4, 4)
    assert np.array_equal(np.array(decode_image.cropped(image, 4, 4)), np.array(expected))


def test_images_are_decoded_up_to_their_bounds() -> None:
    data = saved(picture(1, (9, 6)))
    assert decode_image.decode(data, len(data), 54).size == (9, 6)
    assert decode_image.bounded(data, len(data)) == data
    for most_bytes, most_pixels, says in (
        (len(data) - 1, 54, f"has {len(data)} bytes, but only images of at most {len(data) - 1} bytes are decoded"),
        (len(data), 53, "has 9 x 6 pixels, but only images of 1 to 53 pixels are decoded"),
    ):
        with pytest.raises(decode_image.Refused) as told:
            decode_image.decode(data, most_bytes, most_pixels)
        assert told.value.detail == says
    with pytest.raises(decode_image.Refused, match=f"has more than {len(data) - 1} bytes, the maximum size of a file"):
        decode_image.bounded(data, len(data) - 1)


def test_a_file_is_read_up_to_one_byte_more_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert [decode_image.read_bytes(tmp_path / "a", most) for most in (3, 4, 5)] == [b"1234", b"12345", b"12345"]
    with pytest.raises(decode_image.Refused, match="cannot be read: No such file or directory"):
        decode_image.read_bytes(tmp_path / "b", 5)


def test_threads_of_an_encoding_that_cannot_start_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before, kept, met = torch.get_num_threads(), torch.set_num_threads, []

    def fails_once(number: int) -> None:
        if threading.current_thread().name.startswith("ctrbox-encode") and not met:
            met.append(number)
            raise RuntimeError("no thread")
        kept(number)

    monkeypatch.setattr(torch, "set_num_threads", fails_once)
    with pytest.raises(RuntimeError, match="no thread"):
        encoders.undivided(2)
    assert met == [1]
    assert torch.get_num_threads() == before
