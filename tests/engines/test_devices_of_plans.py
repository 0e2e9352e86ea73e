"""Tests the choice of a plan's device: names that are accepted and refused, several labels, and a GPU that cannot be used."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

import ctrbox as cb
from ctrbox.engines import choose_device as devices
from ctrbox.engines.choose_device import checked_device, device_of_labels, wants_gpu
from ctrbox.errors import PlanError
from ctrbox.plan.placement.device_description import Device

ONE = cb.FeatureSet(dense={"y": "y"})
SEVERAL = cb.FeatureSet(labels={"a": cb.Label("x")}, dense={"y": "y"})


@pytest.mark.parametrize(
    "device", ["auto", "cpu", "cuda", "cuda:1", "cuda:32GB", Device("cpu"), Device("cuda", 1 << 30)]
)
def test_a_device_is_kept_as_it_was_named(device: Any) -> None:
    assert checked_device(device) is device
    assert device_of_labels(ONE, device) is device
    on_gpu = device.kind == "cuda" if isinstance(device, Device) else device.startswith("cuda")
    assert wants_gpu(device) == on_gpu


@pytest.mark.parametrize("device", ["gpu", 3, None])
def test_what_names_no_device_is_refused(device: Any) -> None:
    for call in (
        checked_device,
        lambda given: device_of_labels(ONE, given),
        lambda given: device_of_labels(SEVERAL, given),
    ):
        with pytest.raises(PlanError, match=r"is not a device; expected one of|a device must be 'cpu', 'cuda'"):
            call(device)


def test_several_labels_run_on_the_cpu() -> None:
    assert [device_of_labels(SEVERAL, name) for name in ("auto", "cpu", Device("cpu"))] == ["cpu", "cpu", Device("cpu")]
    for device in ("cuda", "cuda:1", "cuda:32GB", Device("cuda", 1 << 30)):
        with pytest.raises(PlanError) as met:
            device_of_labels(SEVERAL, device)
        assert str(met.value) == (
            f"a plan with several labels (labels=) runs on the CPU only, got device={device!r}; use device='cpu', or a "
            "single label (label=)"
        )


@pytest.mark.parametrize(("here", "missing"), [(True, "no CUDA toolkit"), (True, ""), (False, "")])
def test_a_gpu_is_chosen_where_it_can_be_used(monkeypatch: pytest.MonkeyPatch, here: bool, missing: str) -> None:
    monkeypatch.setattr(devices, "gpu_here", lambda: here)
    runtime = SimpleNamespace(why_not=lambda: missing)  # the real one looks for a GPU, for seconds
    monkeypatch.setitem(sys.modules, "ctrbox.engines.cuda.runtime", runtime)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        assert wants_gpu("auto") == (here and not missing)
    told = [f"this machine has a GPU, but the plan runs on the CPU: {missing}"] if missing else []
    assert [str(w.message) for w in met] == told
