"""The tests of tests/embed/gpu/test_level_table.py on a GPU, and what only streams beside each other can get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox.embed.embedder import Row
from ctrbox.embed.gpu.batch_to_device import References
from ctrbox.engines.cuda.runtime import Runtime, cuda_runtime, why_not
from ctrbox.optimizers.of_table_rows import Adagrad
from tests.embed.gpu.test_gpu_pooling import batch_of_keys, expected_push
from tests.embed.gpu.test_gpu_table import assert_same
from tests.embed.gpu.test_level_table import *  # noqa: F403 - its tests are collected here once more, with this file's runtime
from tests.embed.gpu.test_level_table import levels, step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a GPU")]


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return cuda_runtime()


def test_many_keys_come_and_go_while_steps_run_on_another_stream(runtime: Runtime, tmp_path: Path) -> None:
    table, slow = levels(runtime, tmp_path, (Row(8, True), (Adagrad(), Adagrad())), rows=60_000)
    rng = np.random.default_rng(0)
    ahead: list[Any] = []
    for _ in range(24):
        batch = batch_of_keys({"k": np.minimum(rng.zipf(1.05, 20_000), 10**9)}, 20_000)
        references = References.of(batch, ["k"], table.device)
        table.expect(references)
        ahead.append((batch, references, rng.normal(size=(20_000, 1, 9)).astype(np.float32)))
        if len(ahead) == 4:
            batch, references, g = ahead.pop(0)
            step(table, references, g)
            expected_push(slow, batch, ["k"], ["sum"], g, 1.0)
    assert table.stats()["left"] > 60_000
    for batch, _, _ in ahead:
        slow.prefetch(np.unique(batch.sparse["k"].values))
    assert_same(table, slow)
