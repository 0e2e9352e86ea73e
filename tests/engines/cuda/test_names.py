"""What comes from files and users must stay data: names of columns, devices, bodies."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cuda.compiler import keep, kernel_folder, read
from ctrbox.errors import PlanError
from tests.engines.cuda.conftest import host_runtime
from tests.engines.cuda.plans import agree


@pytest.mark.parametrize("name", ["a\nreturn;", "price\\", "a\nb", "a\0b", "*/ x", 'q"', "靴"])
def test_a_column_of_any_name_is_a_column(name: str) -> None:
    table = pa.table({"id": [1, 2, 3], name: [5, 6, 7]})
    plan = cb.compile(cb.View(table, key="id"), cb.FeatureSet(dense={"x": col(name)}, sparse={"k": col(name).key()}))
    agree(plan, host_runtime(1), (2,))


@pytest.mark.parametrize("device", ["cuda:infGB", "cuda:1e400GB", "cuda:-1", "gpu", 3, None, b"cpu"])
def test_a_device_that_is_none_is_refused_when_it_is_named(device: object) -> None:
    log = cb.View(pa.table({"a": [1]}))
    with pytest.raises(PlanError):
        cb.compile(log, cb.FeatureSet(dense={"a": col("a")}), device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        lambda: cb.types.Device(3),  # type: ignore[arg-type]
        lambda: cb.types.Device("cuda", "infGB"),
        lambda: cb.types.Device("cuda", "1GB", pcie=10**400),
        lambda: cb.types.Device("cuda", "1GB", pcie=5e-324),
    ],
)
def test_a_device_of_no_size_is_refused(made: object) -> None:
    with pytest.raises(PlanError):
        made()  # type: ignore[operator]


@pytest.mark.parametrize("body", ["return a;\0", "return a; // \ud800"])
def test_a_body_that_is_no_text_is_refused_when_it_is_declared(body: str) -> None:
    with pytest.raises(PlanError, match="must be valid text"):
        cb.operator(["int"], "int", cuda=body)(lambda a: a)


def test_a_plan_for_the_cpu_alone_stays_so_when_it_is_saved(tmp_path: Path) -> None:
    log = cb.View(pa.table({"a": [1]}), name="log")
    for device, kept in (
        ("cpu", "cpu"),
        (cb.types.Device("cpu"), "cpu"),
        (cb.types.Device("cuda", "1GB"), "auto"),
        ("auto", "auto"),
    ):
        plan = cb.compile(log, cb.FeatureSet(dense={"a": col("a")}), device=device)
        plan.save(tmp_path / "plan")
        assert cb.Plan.load(tmp_path / "plan", views={"log": log}).device == kept


def test_a_plan_for_a_gpu_answers_requests_on_the_cpu() -> None:
    log = cb.View(pa.table({"a": [1, 2]}))
    wanted = cb.FeatureSet(dense={"a": col("a")})
    plan = cb.compile(log, wanted, device=cb.types.Device("cuda", "1GB"))
    same = cb.compile(log, wanted, device="cpu")
    rows = pa.table({"a": [7]})
    assert plan.run(rows).dense.tolist() == same.run(rows).dense.tolist() == [[7.0]]


def test_a_kernel_folder_may_be_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRBOX_KERNELS", "~/kernels")
    assert kernel_folder() == Path.home() / "kernels"


def test_a_name_too_long_for_the_disk_is_no_reason_to_stop(tmp_path: Path) -> None:
    from ctrbox.engines.cuda.compiler import Compiled

    place = tmp_path / ("x" * 300) / "k.cubin"
    keep(place, Compiled(b"code", ""), "source")
    assert read(place) is None
