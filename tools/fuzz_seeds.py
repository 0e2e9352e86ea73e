"""Seed corpora for native/fuzz, from our own writers: ``python tools/fuzz_seeds.py FOLDER`` makes a folder a target.

Files are small: a fuzzer changes a short file more often in a place that matters.
"""

from __future__ import annotations

import hashlib
import io
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ctrbox as cb
from ctrbox import col, publish

VW = [
    b"1 2.5 'tag|user u1 |ad a7 b2:0.5\n-1 |user u2 |ad a7\n0 |user:2 u1:1e-3 |c x\n",
    b"|user u1\n1 |ad a:+3 b:-0.0 c:1e40\nbad line\n1 1 0.5 |user x\n-1 |0 a |1 b\n\n \n1 |user :3\n",
]
LIBFFM = [b"1 0:a:1 1:b:0.5\n0 2:c:1\n-1 0::1\n1 0:a\n1 1:a:nan 0:b:1\n"]
JSON = [
    b'{"geo": {"city": "K\\u00f6ln", "x": [1, 2.5e3, -0]}, "a": [7, {"b": true}], "numbers": [1, 2.0, "x", null]}',
    b'[{"a": "\\ud83d\\ude00"}, [], {}, false, "\\"", 1e400, -12.5E-3]',
    b'{"a": 1, "a": [2, 3], "deep": {"deep": {"deep": 0}}, "x y": "z", "words": ["a", "b", "c\\n"]}',
    b'$.a $.b[0] $[\'x y\'].c $[3]\n{"a": 1, "b": ["q"], "x y": {"c": 2}}',
    b"-0.5e+7",
    b'"text"',
]
REQUESTS = [
    b'{"context": {"user": 7, "clicked": ["\\"}", {}]}, "candidates": [{"ad": 5, "slot": -3, "price": 1.5, "rate": 2,'
    b' "title": "red shoe", "shown": true, "extra": null}, {"ad": 6, "slot": 127, "price": null, "rate": 1e-3, "title": "",'
    b' "shown": false, "extra": "x"}]}',
    b'{"candidates": {"shown": [true, null], "ad": [-1, 9223372036854775807], "slot": [0, -128], "price": [-0.0, 5e-324],'
    b' "rate": [0.1, 3.4e38], "title": ["a", null]}, "context": {}}',
    b'\n{ "candidates" :\t[ {"a": 4294967295, "x y": "~"} , {"a": 0, "x y": "b"} ] }\r\n',
    b'{"candidates": {"a": [1, 2, 3], "ad": [1.0, true, "q"], "x y": ["a", "b", "c"]}}',
    b'{"candidates": [{"price": 12345678901234567890.5e-3}]}',
    b'{"candidates": {"price": [1]}}',
]


def write(folder: Path, *seeds: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / hashlib.sha1(seed, usedforsecurity=False).hexdigest()[:16]).write_bytes(seed)


def engines(scratch: Path) -> list[cb.DeepFFM]:
    text = scratch / "some.vw"
    text.write_bytes(b"1 |user u1 |ad a7 b2:0.5\n-1 2.0 |user u2 |ad a7\n" * 3)
    cache = cb.ffm.ExampleCache.parse(text, scratch / "some.ctrx")
    found = [
        cb.DeepFFM(cache, bits=6, k=2, hidden=(3,), context=("user",)),
        cb.DeepFFM(cache, bits=5, k=1, hidden=(), lr=None),
        cb.DeepFFM(cache, bits=4, ffm=None, hidden=(2, 2), norm=True, residual=False),
    ]
    for engine in found:
        engine.learn(cache)
    return found


def caches(scratch: Path) -> list[bytes]:
    out = []
    for n, (text, form) in enumerate([(VW[0], "vw"), (VW[1], "vw"), (LIBFFM[0], "libffm")]):
        (scratch / f"{n}.txt").write_bytes(text)
        cb.ffm.ExampleCache.parse(scratch / f"{n}.txt", scratch / f"{n}.ctrx", format=form)
        out.append((scratch / f"{n}.ctrx").read_bytes())
    return out


def tables(scratch: Path) -> list[bytes]:
    out = []
    made = [
        cb.MemoryTable(dim=2, budget="64MB"),
        cb.MemoryTable(dim=1, budget="64MB", linear=cb.optim.FTRL(), counters=cb.tables.Counters(decay=0.9)),
        cb.MemoryTable(dim=1, budget="64MB", admission=cb.tables.Admission(count=2, sketch=64)),
    ]
    for n, table in enumerate(made):
        keys = np.arange(1, 9 * (n + 1), dtype=np.int64)
        table.pull(keys)
        table.save(scratch / f"{n}.table")
        out.append((scratch / f"{n}.table").read_bytes())
    return out


def shard(key: int) -> int:
    """core/embed/shard_of_key.h"""
    x = key
    for _ in range(2):
        x = (x ^ x >> 32) * 0xE9846AF9B1A615D % 2**64
    return (x ^ x >> 28) >> 58


def checkpoint(scratch: Path) -> bytes:
    table = cb.SparseTable(scratch / "params", dim=2, ram="64MB", optimizer=cb.Adagrad(lr=0.1))
    keys = np.array([k for k in range(1, 1_000) if shard(k) == 7], np.int64)  # one run: pages are 4 kB
    table.pull(keys)
    table.push(keys, np.ones((len(keys), 2), np.float32))
    table.checkpoint()
    del table
    manifest = (scratch / "params" / "MANIFEST").read_bytes()
    segment = next((scratch / "params" / "segments").glob("*.seg"))
    if int(segment.stem) != 1:
        raise RuntimeError(f"the first segment is {segment.name}; the target reads number 1")
    return struct.pack("<I", len(manifest)) + manifest + segment.read_bytes()


def published(scratch: Path) -> tuple[list[bytes], list[bytes]]:
    """Weight files, and patches with the base before them."""
    weights, patches = [], []
    for n, engine in enumerate(engines(scratch)):
        old, new, patch = scratch / f"{n}.old.fbw", scratch / f"{n}.new.fbw", scratch / f"{n}.patch"
        publish.pack(engine, old, quantize=n != 1)
        engine.learn(cb.ffm.ExampleText(scratch / "some.vw"))
        publish.pack(engine, new, base=old, quantize=n != 1)
        publish.diff(old, new, patch)
        weights += [old.read_bytes(), new.read_bytes()]
        patches.append(struct.pack("<I", old.stat().st_size) + old.read_bytes() + patch.read_bytes())
    return weights, patches


def request_plans(scratch: Path) -> list[bytes]:
    """Plans for requests: without and with a join, a filter and the tables of operators."""
    ads = pa.table({"ad": [1, 2, 3], "title": ["red shoe", "blue hat", ""], "bid": [0.5, None, 2.0]})
    log = pa.table({"id": [1, 2], "user": [7, 8], "text": ["red", ""], "ad": [1, 2], "clicked": [0, 1]})
    view, words = cb.View(log, key="id"), col("text").lower().split(" ")
    sparse = {"user": col("user").key(), "words": words.key(), "user_x_ad": cb.cross("user", "ad")}
    plain = cb.FeatureSet(label=col("clicked"), sparse=sparse, dense={"ad": col("ad")})
    more = cb.FeatureSet(
        label=col("clicked"),
        sparse=sparse | {"few": col("title").is_in(["", "red"]).key(), "many": col("ad").is_in(list(range(20))).key()},
        dense={
            "overlap": cb.overlap(words, col("title").split(" ")),
            "bucket": col("bid").bucketize([0.0, 1.0]),
            "json": col("text").json("$.a[1]", "float").fill(0.0),
        },
    )
    joined = view.join(cb.View(ads, key="ad", name="ads").fill(title="", bid=0.0), on="ad").filter(col("bid") < 1.5)
    found = []
    for n, (source, features) in enumerate([(view, plain), (joined, more)]):
        path = scratch / f"{n}.request.ctr"
        cb.serve.save_request_plan(cb.compile(source, features, device="cpu"), path, context=["user", "text"])
        found.append(path.read_bytes())
    return found


def column_chunks() -> list[bytes]:
    """Pages as pyarrow writes them, behind what they are said to hold."""
    table = pa.table({"s": ["ab", None, "", "ab", "a longer word"] * 4, "n": [1, None, 3, 3, 2**40] * 4})
    out = []
    for number, codec in enumerate(["none", "lz4", "snappy"]):
        for version in ("1.0", "2.0"):
            for coded in (False, True):
                to = io.BytesIO()
                pq.write_table(
                    table, to, compression=codec, use_dictionary=coded, data_page_version=version, data_page_size=60
                )
                group = pq.ParquetFile(to).metadata.row_group(0)
                for place, width in enumerate([0, 2]):
                    chunk = group.column(place)
                    start = chunk.dictionary_page_offset or chunk.data_page_offset
                    pages = to.getvalue()[start : start + chunk.total_compressed_size]
                    out.append(bytes([number, width, 1]) + struct.pack("<H", table.num_rows) + pages)
    return out


def rows(kinds: int) -> list[bytes]:
    """Nothing knows what an operator's input means: some bytes for each kernel."""
    shake = hashlib.shake_128(b"rows").digest(400)
    text = b"Hello, W\xc3\xb6rld 2024-02-29T12:34:56.5Z 1.5e300 -9223372036854775808 \xff\xfe \xe4\xb8\xad"
    return [struct.pack("<H", k) + bytes([3, k % 4]) + (shake if k % 2 else text * 3) for k in range(kinds)]


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write(
            out / "vw_libffm_lines", *(b"\x10" + t for t in VW), *(b"\1" + t for t in LIBFFM), *(b"\2" + t for t in VW)
        )
        write(out / "json", *JSON)
        write(out / "request_rows", *(bytes([how]) + t for t in REQUESTS for how in range(8)))
        models = []
        for n, engine in enumerate(engines(scratch)):
            engine.save(scratch / f"{n}.ffm")
            models.append((scratch / f"{n}.ffm").read_bytes())
        weights, patches = published(scratch)
        files = {
            "example_cache": caches(scratch),
            "model_file": models,
            "table_file": tables(scratch),
            "checkpoint": [checkpoint(scratch)],
            "weight_file": weights,
            "patch_file": patches,
            "request_plan": request_plans(scratch),
        }
        for target, seeds in files.items():
            write(out / target, *seeds)
            write(out / f"{target}_forged", *seeds)
    streams = hashlib.shake_128(b"streams").digest(600)
    write(out / "patch", *(bytes([how, word]) + streams for how in range(4) for word in range(3)))
    write(out / "batch", *(bytes([4, 2, how, 2]) + streams[:200] for how in (0, 5, 21, 61, 255)))
    # Rows, no strange batch, columns, then a column: how, its kind, values.
    write(out / "frame", *(bytes([9, 0, 1, how, kind]) + streams for kind in range(18) for how in (0, 3, 31, 39)))
    write(out / "request_rows", *(bytes([8 + n % 3]) + streams[20 * n :][:200] for n in range(12)))
    write(out / "parquet", *column_chunks())
    write(out / "c_api_calls", *(bytes([how]) + streams[how:300] for how in range(8)))
    for target in ("strings", "numbers", "lists"):
        write(out / target, *rows(160))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
