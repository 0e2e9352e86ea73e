"""`plan.explain()`: a page that says what is true of the plan."""

from __future__ import annotations

import json
import re
import time

import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from ctrbox.plan.explain import WIDTH, explain, explain_json
from tests.plan import world


def test_the_page_names_views_columns_layers_and_features() -> None:
    page = world.plan().explain("cuda:32GB")
    for text in (
        "log: the log",
        "users: joined (left)",
        "ads: joined (left)",
        "advertisers: joined (left)",
        "40 rows",
        "never read: instance_id, unused",
        'filter: is_in(%4, {"ios", "web"})',
        "hoisted below the join",
        "layer 0",
        "index and records of ads",
        "Fitted     moments",
        "copies between devices",
    ):
        assert text in page
    assert re.search(r'%\d+ = split\(%\d+, " "\) +list\[str\] .*→ overlap, query, word', page)
    assert max(map(len, page.splitlines())) <= WIDTH


def test_the_page_is_the_same_every_time() -> None:
    assert world.plan().explain() == world.plan().explain()


def test_facts_are_plain_data_and_agree_with_the_graph() -> None:
    plan = world.plan()
    facts = explain_json(plan.graph, "cuda:32GB")
    json.dumps(facts, allow_nan=False)
    assert [o["name"] for o in facts["outputs"]] == [o.name for o in plan.graph.outputs]
    for frame, spec in zip(facts["frames"], plan.graph.frames, strict=True):
        assert [[n["id"] for n in layer] for layer in frame["layers"]] == [
            [str(n) for n in layer] for layer in plan.graph.layers(spec)
        ]
    ads = next(f for f in facts["frames"] if f["name"] == "ads")
    assert ads["hoisted_factor"] == 10.0
    assert ads["sources"][0]["columns_unread"] == ["landing"]


def test_sharing_counts_each_use_once_after_it() -> None:
    tokens = col("q").lower().split(" ")
    log = cb.View(pa.table({"q": ["a b"]}), name="log")
    features = cb.FeatureSet(sparse={"a": tokens.key(), "b": tokens.ngrams(2).key()})
    sharing = explain_json(cb.compile(log, features, device="cpu").graph, "cpu")["sharing"]
    # a: lower, split, hash, key; b: lower, split, hash, ngrams, key
    assert sharing == {"written": 9, "kept": 6, "dropped": 0}


def test_a_column_nobody_uses_is_said_to_be_dropped() -> None:
    assert explain_json(world.plan().graph, "cpu")["sharing"]["dropped"] > 0


def test_a_view_nobody_uses_is_said_not_to_be_read() -> None:
    log = cb.View(pa.table({"k": [1, 2]}), name="log")
    joined = log.join(cb.View(pa.table({"k": [1], "x": [2]}), key="k", name="idle"), on="k")
    page = cb.compile(joined, cb.FeatureSet(sparse={"k": col("k")}), device="cpu").explain()
    assert "nothing needs it: it is not read" in page


def test_the_cpu_page_has_a_note_when_a_gpu_was_asked_for() -> None:
    assert "no GPU" in explain(world.plan().graph, "auto") or "cuda" in explain(world.plan().graph, "auto")


def test_odd_names_and_constants_stay_on_their_line() -> None:
    log = cb.View(pa.table({"a\nb": ["x"], 'q"': ["y"]}), name="l\nog")
    features = cb.FeatureSet(sparse={"f\n": col("a\nb").replace("\n", "\t\u200b"), "g": col('q"').split("\udcff")})
    page = cb.compile(log, features, device="cpu").explain()
    page.encode("utf-8")
    assert not any(c in page for c in "\t\x00\r")


def test_500_features_are_explained_in_well_under_a_second() -> None:
    log = cb.View(pa.table({f"c{k}": [k] for k in range(40)}), name="log")
    pairs = [(a, b) for a in range(40) for b in range(a)][:500]
    sparse = {f"x{a}_{b}": cb.cross(f"c{a}", f"c{b}") for a, b in pairs}
    graph = cb.compile(log, cb.FeatureSet(sparse=sparse), device="cpu").graph
    began = time.perf_counter()
    explain(graph, "cuda:1GB")
    assert time.perf_counter() - began < 3  # takes about 0.1 s; machines are shared
