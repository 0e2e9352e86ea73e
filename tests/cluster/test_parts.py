"""What a cluster is made of, without Ray: parts of batches, sums in worker order, saved shards."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.cluster.cluster import check_listening
from ctrbox.embed.embedder import Row
from ctrbox.embed.shards import restore_shard, shard_path, shards_in
from ctrbox.embed.vectors.vector_file import shard_of
from ctrbox.errors import DataError, DeviceError, PlanError
from ctrbox.files.atomic import remove
from ctrbox.models.dense_columns import DenseInput
from ctrbox.train.gradient_sums import Gang
from tests.train.worlds import checkerboard, features, on_disk


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # bound, and nobody listens
        with pytest.raises(DeviceError, match=f"at '{address}': no answer from that address"):
            check_listening(address)
        free.listen()
        check_listening(address)
    with pytest.raises(DeviceError, match="no answer from"):
        check_listening("127.0.0.1:99999999999")
    for other in ("auto", "local", "ray://127.0.0.1:1", "host:"):
        check_listening(other)


@pytest.mark.parametrize("shuffle", [0, 512])
@pytest.mark.parametrize("of", [1, 2, 3, 300])
def test_parts_of_all_workers_are_the_batch(of: int, shuffle: int) -> None:
    log = cb.View(checkerboard(700), key="id").fill(tags=[]).filter(col("device") == "web")
    plan = cb.compile(log, features(), threads=2)
    options = {"shuffle": shuffle, "seed": 3}
    whole = list(plan.batches(200, **options).positioned())
    parts = [list(plan.parts(200, k, of, **options)) for k in range(min(of, 4))]
    assert all(len(part) == len(whole) for part in parts)
    for k, (batch, position) in enumerate(whole):
        for part, found in enumerate(parts):
            mine, where, rows = found[k]
            at = slice(batch.rows * part // of, batch.rows * (part + 1) // of)
            assert (rows, where) == (batch.rows, position)
            assert np.array_equal(mine.label, batch.label[at])
            assert np.array_equal(mine.dense, batch.dense[at])
            offsets = batch.sparse["tags"].offsets
            assert np.array_equal(
                mine.sparse["tags"].values, batch.sparse["tags"].values[offsets[at.start] : offsets[at.stop]]
            )


def test_parts_refuse_a_part_that_is_none() -> None:
    plan = cb.compile(cb.View(checkerboard(10), key="id").fill(tags=[]), features())
    with pytest.raises(PlanError, match="part must be"):
        list(plan.parts(4, 2, 2))


def gang(of: int, work) -> list:
    """``work(gang)`` in ``of`` threads; their results in order."""
    import torch.distributed as dist

    store, found, errors = dist.HashStore(), [None] * of, []

    def run(k: int) -> None:
        try:
            found[k] = work(Gang(k, of, "127.0.0.1:0", "127.0.0.1", store))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(of)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return found


@pytest.mark.parametrize("of", [2, 3])
def test_gradients_are_added_up_in_worker_order(of: int) -> None:
    rng = np.random.default_rng(of)
    given_ = [(rng.standard_normal(11) * 10.0 ** rng.integers(-6, 6, 11)).astype(np.float32) for _ in range(of)]

    def work(g: Gang) -> tuple:
        first, second = torch.zeros(2, 3), torch.zeros(5)
        mine = torch.from_numpy(given_[g.part].copy())
        first.grad, second.grad = mine[:6].view(2, 3), mine[6:]
        idle, nowhere, nothing = torch.zeros(2), torch.zeros(3), torch.zeros(0)
        if g.part == of - 1:
            idle.grad = torch.tensor([4.0, -0.5])
        g.add_up([first, nowhere, second, idle, nothing], 0.5)
        assert nowhere.grad is None  # no worker has a gradient: an optimizer must not step
        assert nothing.grad is None
        g.add_up([nothing], 0.5)
        return first.grad.numpy().tobytes(), second.grad.numpy().tobytes(), idle.grad.tolist(), g.sums([g.part, 1.0])

    expected = np.float32(0.5) * given_[0]
    for more in given_[1:]:
        expected = expected + np.float32(0.5) * more
    for found in gang(of, work):
        assert found == (expected[:6].tobytes(), expected[6:].tobytes(), [2.0, -0.25], [sum(range(of)), float(of)])


def test_dense_inputs_learn_the_moments_of_all_workers_rows() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).lognormal(5, 3, (90, 4)).astype(np.float32))
    alone = DenseInput(4)
    alone(rows)
    alone(rows[:30] + 1)

    def work(g: Gang) -> list[list[float]]:
        one = DenseInput(4)
        one.sums = g.sums
        one(rows[g.part * 45 : g.part * 45 + 45])
        if g.part:
            one.learn_none()
        else:
            one(rows[:30] + 1)
        return [one.seen.tolist(), one.mean.tolist(), one.spread.tolist()]

    first, second = gang(2, work)
    assert first == second
    assert first[0] == 120
    torch.testing.assert_close(torch.tensor(first[1]), alone.mean.float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(torch.tensor(first[2]), alone.spread.float(), rtol=1e-4, atol=0)


# ---- saved shards


def filled(kind: str, folder: Path, keys: np.ndarray) -> cb.MemoryTable | cb.SparseTable:
    options = {"optimizer": cb.Adagrad(lr=0.1), "seed": 5}
    table = cb.MemoryTable(3, **options) if kind == "memory" else cb.SparseTable(folder, 3, ram="4MB", **options)
    table.open(Row(3, linear=True))
    if len(keys):
        table.push(keys, np.sin(np.outer(keys.astype(np.float64), np.arange(1, 5))).astype(np.float32))
    return table


@pytest.mark.parametrize("kind", ["memory", "sparse"])
def test_two_saved_shards_go_onto_one_and_three(kind: str, tmp_path: Path) -> None:
    keys = np.arange(1, 400, dtype=np.int64) * 7919
    whole = filled(kind, tmp_path / "whole", keys).export()
    place = tmp_path / "saved"
    place.mkdir()
    for s in range(2):
        with_shard = filled(kind, tmp_path / f"of2-{s}", keys[shard_of(keys, 2) == s])
        with_shard.save(shard_path(place, s, 2))
    for of in (1, 2, 3):
        found = []
        for s in range(of):
            table = filled(kind, tmp_path / f"new-{of}-{s}", keys[:0])
            restore_shard(table, place, s, of)
            found.append(table.export())
            assert (shard_of(found[-1][0], of) == s).all()
        joined = [np.concatenate(parts) for parts in zip(*found, strict=True)]
        order = np.argsort(joined[0])
        for mine, expected in zip(joined, whole, strict=True):
            assert mine[order].tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", ["memory", "sparse"])
def test_saved_shards_replace_what_a_table_holds(kind: str, tmp_path: Path) -> None:
    keys, old = np.arange(1, 400, dtype=np.int64) * 7919, np.arange(-300, 300, dtype=np.int64)
    whole = filled(kind, tmp_path / "whole", keys).export()
    (tmp_path / "saved").mkdir()
    for s in range(2):
        filled(kind, tmp_path / f"of2-{s}", keys[shard_of(keys, 2) == s]).save(shard_path(tmp_path / "saved", s, 2))
    table = filled(kind, tmp_path / "used", old)
    restore_shard(table, tmp_path / "saved")
    for mine, expected in zip(table.export(), whole, strict=True):
        assert mine.tobytes() == expected.tobytes()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    for s in range(2):
        remove(shard_path(tmp_path / "saved", s, 2))
        filled(kind, tmp_path / f"none-{s}", keys[:0]).save(shard_path(tmp_path / "saved", s, 2))
    restore_shard(table, tmp_path / "saved")
    assert len(table) == 0


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for s in (0, 2):
        shard_path(tmp_path, s, 3).write_bytes(b"")
    with pytest.raises(DataError, match="holds 2 of 3 shards"):
        shards_in(tmp_path)


# ---- a server, called as Ray would


@settings(deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.floats(-(2.0**90), 2.0**90, width=32), max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_gradients_of_a_key_are_added_up_in_worker_order(workers: list[dict[int, float]]) -> None:
    shards = pytest.importorskip("ctrbox.cluster.shards", reason="needs ray: pip install 'ctrbox[cluster]'")
    keys = [np.array(list(w), np.int64) for w in workers]
    values = [np.array(list(w.values()), np.float32).reshape(-1, 1) for w in workers]
    found, total = shards.added_up(keys, values)
    slow: dict[int, np.float32] = {}
    for w in workers:
        for key, value in w.items():
            slow[key] = slow.get(key, np.float32(0)) + np.float32(value)
    assert dict(zip(found.tolist(), total[:, 0].tolist(), strict=True)) == {k: float(v) for k, v in slow.items()}


def test_a_meeting_hears_everyone_or_nobody() -> None:
    shards = pytest.importorskip("ctrbox.cluster.shards", reason="needs ray: pip install 'ctrbox[cluster]'")
    meeting, found = shards.Meeting(3), {}

    def run(who: int) -> None:
        for _ in range(20):
            found[who] = meeting.meet(who, who * 10, lambda parts: [parts, parts, parts])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: [0, 10, 20] for k in range(3)}
    threading.Timer(0.05, meeting.end).start()
    with pytest.raises(shards.Over):
        meeting.meet(0, 0, lambda parts: parts)


def test_a_handshake_names_the_difference() -> None:
    handshake = pytest.importorskip(
        "ctrbox.cluster.same_code_data_settings", reason="needs ray: pip install 'ctrbox[cluster]'"
    )
    mine = {"torch": "2", "plan": "abc", "data": [["log", "1"], ["ads", "2"]], "run folder": "f"}
    handshake.check_same(mine, dict(mine), "worker 1")
    with pytest.raises(PlanError, match=r"worker 1 differs in plan: 'abd', expected 'abc'"):
        handshake.check_same(mine, {**mine, "plan": "abd"}, "worker 1")
    with pytest.raises(PlanError, match=r"differs in data: \['ads', '3'\]"):
        handshake.check_same(mine, {**mine, "data": [["log", "1"], ["ads", "3"]]}, "worker 1")
    with pytest.raises(PlanError, match="cannot see the run folder"):
        handshake.check_same(mine, {**mine, "run folder": "not visible"}, "worker 1")


def test_a_worker_whose_copy_of_the_log_has_other_rows_is_refused(tmp_path: Path) -> None:
    """The copies have one name, one size and one modification time."""
    handshake = pytest.importorskip(
        "ctrbox.cluster.same_code_data_settings", reason="needs ray: pip install 'ctrbox[cluster]'"
    )
    facts = []
    for machine in ("here", "there", "elsewhere"):
        folder = tmp_path / machine
        folder.mkdir()
        log = on_disk(folder).log.source.name
        if machine == "elsewhere":
            rows = bytearray(Path(log).read_bytes())
            rows[len(rows) // 2] ^= 1
            Path(log).write_bytes(rows)
        os.utime(log, ns=(10**18, 10**18))
        facts.append(handshake.facts_of(on_disk(folder), tmp_path))
    mine, same, other = facts
    handshake.check_same(mine, same, "worker 1")
    with pytest.raises(PlanError, match=r"worker 2 differs in data: .*'log'"):
        handshake.check_same(mine, other, "worker 2")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(cb.errors.DeviceError, match=r"pip install 'ctrbox\[cluster\]'"):
        cb.Cluster(workers=2)
