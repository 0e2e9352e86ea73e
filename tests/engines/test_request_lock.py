"""Requests of a plan for a GPU share one CPU program, made under the plan's lock."""

from __future__ import annotations

import pyarrow as pa

import ctrbox as cb
from ctrbox import col
from tests.serve.locks import waits_for


def test_requests_of_a_plan_for_a_gpu_wait_for_its_lock() -> None:
    view = cb.View(pa.table({"word": ["a", "b"], "number": [1.0, 2.0]}))
    plan = cb.compile(view, cb.FeatureSet(sparse={"w": col("word")}, dense={"n": col("number")}), device="cuda:1GB")
    plan._request_extractor()  # what is imported once takes its time here
    assert waits_for(plan._lock, plan._request_extractor)
