"""Where the rules of the planner change over: one step before the bound, at it and behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.errors import PlanError
from ctrbox.plan.drawing.explain import constant, signed
from ctrbox.plan.drawing.explain_text import WIDTH, cut, listed, shown_ns, shown_rate
from ctrbox.plan.placement import device_description as device
from ctrbox.plan.placement.device_description import Device, device_named, gpu_here, gpu_number, shown_bytes
from ctrbox.plan.placement.gpu_memory_sizes import entry_bytes, index_bytes, stored_bytes
from ctrbox.plan.placement.offload import Compared
from ctrbox.plan.placement.placement import faster, place, place_operators

# ---- words and numbers of a page


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(None, ""), (0.0, "0.000"), (1.23456, "1.235"), (99.9994, "99.999"), (100.0, "100"), (1234.5, "1,234")],
)
def test_nanoseconds_have_three_decimals_below_100(ns: float | None, shown: str) -> None:
    assert shown_ns(ns) == shown


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        (999.0, "999.0 rows/s"),
        (1e3, "1.0 thousand rows/s"),
        (1e6 - 1, "1000.0 thousand rows/s"),
        (1e6, "1.0 million rows/s"),
        (1e9, "1.0 billion rows/s"),
        (2.5e10, "25.0 billion rows/s"),
    ],
)
def test_a_rate_has_the_largest_unit_that_it_reaches(rows: float, shown: str) -> None:
    assert shown_rate(rows) == shown


@pytest.mark.parametrize(("length", "shown"), [(117, "x" * 117), (118, "x" * 118), (119, "x" * 117 + "…")])
def test_a_line_is_cut_at_the_width_of_the_page(length: int, shown: str) -> None:
    assert WIDTH == 118
    assert cut("x" * length) == shown


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (16, " → aa, bb, cc"),
        (13, " → aa, bb, cc"),
        (12, " → aa, bb +1"),
        (11, " → aa +2"),
        (8, " → aa +2"),
        (1, " → aa +2"),  # the first is always named
    ],
)
def test_names_are_listed_as_far_as_there_is_room(room: int, shown: str) -> None:
    assert listed(["aa", "bb", "cc"], room) == shown
    assert listed([], room) == ""
    assert listed(["aa"], room, arrow="") == " aa"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        (1 << 20, "1.0 MB"),
        (1 << 30, "1.0 GB"),
        ((1 << 40) - (1 << 20), "1024.0 GB"),
        (1 << 40, "1.0 TB"),
        (5 << 50, "5120.0 TB"),
    ],
)
def test_bytes_have_the_largest_unit_that_they_reach(count: int, shown: str) -> None:
    assert shown_bytes(count) == shown


def test_one_core_is_a_core() -> None:
    assert faster(Compared(1.5, 120.0), 1) == (
        "the CPU is faster: 1.5 ns a row on 1 core with the copy of its result, 1.2e+02 ns on the GPU with the copy of its inputs"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * 24, '"' + "x" * 24 + '"'),
        ("x" * 25, '"' + "x" * 23 + '…"'),
        ("a\n", '"a\\n"'),
        ("ü", '"ü"'),
        (b"a\xff", '"a\\\\xff"'),
        ((), "[]"),
        (1.5, "1.5"),
        (True, "True"),
    ],
)
def test_a_constant_is_short_and_on_one_line(value: Any, shown: str) -> None:
    assert constant(value) == shown


def test_a_salt_is_shown_with_a_sign() -> None:
    assert [signed(n) for n in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [0, 2**63 - 1, -(2**63), -1]


# ---- devices


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kind": "gpu"}, "the kind of a device must be 'cpu' or 'cuda', got 'gpu'"),
        ({"kind": 3}, "the kind of a device must be 'cpu' or 'cuda', got 3"),
        ({"kind": "cuda"}, 'the memory of a GPU must be given: cb.types.Device("cuda", memory="80GB")'),
        ({"kind": "cpu", "cores": 0}, "cores of a device must be a whole number from 1 to 1,000,000, got 0"),
        ({"kind": "cpu", "cores": True}, "cores of a device must be a whole number from 1 to 1,000,000, got True"),
        ({"kind": "cpu", "cores": 1.0}, "cores of a device must be a whole number from 1 to 1,000,000, got 1.0"),
        (
            {"kind": "cpu", "pcie": 0.0009},
            "pcie of a device must be GB per second, from 0.001 to a million, got 0.0009",
        ),
        (
            {"kind": "cpu", "pcie": 1e6 + 1},
            "pcie of a device must be GB per second, from 0.001 to a million, got 1000001.0",
        ),
        ({"kind": "cpu", "pcie": True}, "pcie of a device must be GB per second, from 0.001 to a million, got True"),
        ({"kind": "cpu", "pcie": "1"}, "pcie of a device must be GB per second, from 0.001 to a million, got '1'"),
    ],
)
def test_a_device_that_cannot_be(given: dict[str, Any], told: str) -> None:
    with pytest.raises(PlanError) as caught:
        Device(**given)
    assert str(caught.value).startswith(told)


def test_devices_at_their_bounds() -> None:
    assert Device("cuda", 1).budget == 1
    assert (Device("cpu", cores=1, pcie=0.001).pcie, Device("cpu", pcie=10**6).pcie) == (0.001, 10**6)
    assert (str(Device("cpu")), str(Device("cuda", "2KB"))) == ("cpu", "cuda with 2.0 KB")


def test_a_device_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "GPUS", tmp_path / "none")
    monkeypatch.setattr(device, "CONTROL", tmp_path / "control")
    known = Device("cuda", "1GB")
    assert device_named(known) is known
    assert device_named("cuda:32GB") == Device("cuda", 32 << 30)
    assert device_named("cpu").note == ""
    assert device_named("auto", gpu_bytes=5) == device_named("cuda", gpu_bytes=5) == Device("cuda", 5)
    assert device_named("cpu", gpu_bytes=5) == Device("cpu")
    for name in ("auto", "cuda"):
        assert device_named(name) == Device("cpu")
        assert device_named(name).note.startswith(
            f"{name}: this machine has no GPU; to plan for a GPU that this machine does not have, describe it: "
        )
    assert not gpu_here()
    (tmp_path / "control").touch()
    assert gpu_here()
    assert device_named("auto").note.startswith("auto: this machine has no GPU of known size; ")
    with pytest.raises(PlanError, match="the memory size of the GPU is not known; give it"):
        device_named("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not gpu_here()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (tmp_path / "none").mkdir()
    assert not gpu_here()
    (tmp_path / "none/0000:01:00.0").mkdir()
    assert gpu_here()
    for wrong, told in (
        ("cdua", "'cdua' is not a device; expected one of cpu, cuda, cuda:0, cuda:32GB, auto; nearest: 'cuda'"),
        (3, "a device must be 'cpu', 'cuda', 'cuda:0', 'cuda:32GB', 'auto' or a cb.types.Device, got 3"),
    ):
        with pytest.raises(PlanError) as caught:
            device_named(wrong)
        assert str(caught.value) == told
    assert device_named("cuda:3", gpu_bytes=5) == Device("cuda", 5)
    numbers = [
        gpu_number(device) for device in ("cuda:0", "cuda:12", "cuda", "cuda:3GB", "cpu", "cuda:-1", "cuda:99999", 3)
    ]
    assert numbers == [0, 12, None, None, None, None, None, None]


# ---- memory


def test_operators_take_the_gpu_while_their_memory_fits() -> None:
    needs: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    memory = {"a": 4, "b": 6, "c": 7, "d": 3}
    found = place_operators(needs, memory, 13)
    assert found.layers == [["a"], ["b", "c"], ["d"]]
    assert found.devices == {"a": "cuda", "b": "cuda", "c": "cpu", "d": "cuda"}  # 4 + 6 + 3 are just 13
    assert found.copies == [("a", "D2H"), ("c", "H2D")]
    assert place_operators(needs, memory, 12).devices["d"] == "cpu"
    only = place_operators(needs, memory, 100, host_only=["b"])
    assert (only.devices["b"], only.copies) == ("cpu", [("a", "D2H"), ("b", "H2D")])
    assert place_operators(needs, memory, 0).copies == []
    # What nobody uses is delivered to the GPU, where there is one in use.
    assert ("d", "H2D") in place_operators(needs, memory, 12).copies


@pytest.mark.parametrize(("entries", "slots"), [(0, 16), (8, 16), (9, 32), (16, 32), (17, 64)])
def test_an_index_is_at_most_half_full(entries: int, slots: int) -> None:
    assert index_bytes(entries) == 16 * slots
    assert cb.Dictionary(pa.array([str(k) for k in range(entries)], pa.string())).bytes == 16 * slots + 8 * entries


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (pa.int8(), 1),
        (pa.float64(), 8),
        (pa.bool_(), 0.125),
        (pa.string(), 4 + 10),
        (pa.binary(), 4 + 10),
        (pa.large_string(), 8 + 10),
        (pa.large_binary(), 8 + 10),
        (pa.list_(pa.int64()), 4 + 3 * 8),
        (pa.large_list(pa.int32()), 8 + 3 * 4),
        (pa.list_(pa.string()), 4 + 3 * 14),
        (pa.list_(pa.float32(), 5), 20),
        (pa.dictionary(pa.int16(), pa.string()), 2),
    ],
    ids=str,
)
def test_a_value_takes_what_arrow_lays_out(kind: pa.DataType, size: float) -> None:
    assert stored_bytes(kind, text=10, items=3) == size


def test_entries_of_registers() -> None:
    assert {kind: entry_bytes(kind) for kind in ("b", "i", "f", "t", "k", "s", "*b", "*s")} == {
        "b": 1, "i": 8, "f": 8, "t": 8, "k": 8, "s": 16, "*b": 16, "*s": 16,
    }  # fmt: skip


def test_a_table_stays_on_the_cpu_when_one_byte_is_missing() -> None:
    words = cb.Dictionary(pa.array([f"w{k}" for k in range(40_000)]))
    log = cb.View(pa.table({"s": ["w1"], "n": [1.0]}), name="log")
    features = cb.FeatureSet(dense={"id": col("s").lookup(words, default=0), "n": col("n").log1p()})
    graph = cb.compile(log, features, device="cpu").graph

    def where(budget: int) -> str:
        (table,) = place(graph, Device("cuda", budget)).tables
        return table.device

    without, with_ = 1 << 20, 1 << 30
    assert (where(without), where(with_)) == ("cpu", "cuda")
    while with_ - without > 1:
        middle = (without + with_) // 2
        without, with_ = (without, middle) if where(middle) == "cuda" else (middle, with_)
    # The smallest GPU that holds the table has no byte left beside its chunks.
    assert place(graph, Device("cuda", with_)).used_bytes == with_
    told = next(
        p.reason for p in place(graph, Device("cuda", without)).operators.values() if p.node.op == "dictionary_id"
    )
    assert told.startswith(f"a dictionary of 40,000 words to ids: {shown_bytes(words.bytes)} do not fit in the ")
