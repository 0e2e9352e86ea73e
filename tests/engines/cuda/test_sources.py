"""Generated source: what it compiles to, how it is kept, what it costs in launches, and that its constants survive."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.engines.cuda import compiler
from ctrbox.engines.cuda.compiler import compile_source, expanded
from ctrbox.engines.cuda.copy_out_batches import MOST_STRETCHES
from ctrbox.engines.cuda.kernel_source import Source, real, whole
from ctrbox.engines.cuda.program import Layout, Recorded
from ctrbox.errors import DeviceError
from tests.compiled_plan.test_whole_plan import rich, world
from tests.cuda_host import HostRuntime
from tests.engines.cuda import hostile
from tests.engines.cuda.conftest import host_runtime
from tests.engines.cuda.expressions import FAMILIES, fitted
from tests.engines.cuda.plan_checks import features, log_table
from tests.engines.cuda.plans import agree, on_device
from tests.engines.cuda.registers import Registers

KERNEL = 'extern "C" __global__ void {name}(unsigned long long* out) {{ out[0] = {value}; }}\n'


@cache
def nvrtc_here() -> str:
    """Why NVRTC cannot be used here, or ""."""
    try:
        with TemporaryDirectory() as folder:
            compile_source(KERNEL.format(name="probe", value=1), "sm_90", folder=Path(folder))
    except DeviceError as error:
        return str(error)
    return ""


@pytest.fixture
def _nvrtc() -> None:
    if nvrtc_here():
        pytest.skip(nvrtc_here())


needs_nvrtc = pytest.mark.usefixtures("_nvrtc")


# ---- NVRTC --------------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.exhaustive)])
def test_the_kernels_of_a_plan_compile_for_a_gpu(arch: str, tmp_path: Path) -> None:
    plan = cb.compile(*rich(world(7, 20, ordered=True).tables, True))
    made = on_device(plan, host_runtime(1))
    compiled = compile_source(expanded(made.source.text()), arch, folder=tmp_path)
    used = compiled.usage()
    assert used.keys() == {*made.source.launches, "copy"}
    assert all(0 < k["registers"] <= 255 for k in used.values())
    assert compiled.code[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.exhaustive  # minutes; `make bodies` compiles every body in seconds
@pytest.mark.parametrize("nulls", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_operator_compiles_for_a_gpu(family: str, nulls: bool, tmp_path: Path) -> None:
    made = Registers(FAMILIES[family](), hostile.sample(nulls), host_runtime(1), fitted=fitted)
    text = made.extractor.source.text()
    assert compile_source(expanded(text), "sm_90", folder=tmp_path).usage().keys() == {
        *made.extractor.source.launches,
        "copy",
    }


@needs_nvrtc
def test_a_kernel_is_compiled_once_and_its_source_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KERNEL.format(name="once", value=7)
    first = compile_source(source, "sm_90", folder=tmp_path)
    cubin, text = sorted(tmp_path.iterdir(), key=lambda p: p.suffix, reverse=True)
    assert (cubin.suffix, text.suffix) == (".cubin", ".cu")
    assert text.read_text() == source
    assert cubin.stem == text.stem
    calls = []
    monkeypatch.setattr(compiler, "keep", lambda *args: calls.append(args))
    assert compile_source(source, "sm_90", folder=tmp_path) == first
    assert not calls
    for other in ((KERNEL.format(name="once", value=8), "sm_90"), (source, "sm_80")):
        compile_source(*other, folder=tmp_path)
    assert len(calls) == 2


@needs_nvrtc
def test_what_was_compiled_before_has_its_report_of_registers(tmp_path: Path) -> None:
    """Elsewhere, so that it is compiled again: NVRTC's own cache would answer without a report."""
    source = KERNEL.format(name="reported", value=5)
    found = [compile_source(source, "sm_90", folder=tmp_path / name).usage() for name in ("first", "second")]
    assert found[0] == found[1]
    assert found[0]["reported"]["registers"] > 0


@needs_nvrtc
def test_a_damaged_or_cut_file_is_compiled_again(tmp_path: Path) -> None:
    source = KERNEL.format(name="again", value=3)
    made = compile_source(source, "sm_90", folder=tmp_path)
    (place,) = tmp_path.glob("*.cubin")
    good = place.read_bytes()
    assert compiler.read(place) == made
    cuts = [good[:size] for size in (0, 1, 7, 40, compiler.HEAD.size, compiler.HEAD.size + 5, len(good) - 1)]
    flips = [
        good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        for at in (0, 8, 13, 20, 30, compiler.HEAD.size, len(good) - 1)
    ]
    older = (
        compiler.HEAD.pack(compiler.MAGIC, compiler.VERSION + 1, *compiler.HEAD.unpack_from(good)[2:])
        + good[compiler.HEAD.size :]
    )
    for bad in (*cuts, *flips, good + b"x", older):
        place.write_bytes(bad)
        assert compiler.read(place) is None
    assert compile_source(source, "sm_90", folder=tmp_path).code == made.code
    assert compiler.read(place) is not None
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".cu", ".cubin"]


@needs_nvrtc
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    source = KERNEL.format(name="kept_nowhere", value=2)
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert compile_source(source, "sm_90", folder=folder).code
    monkeypatch.setenv("CTRBOX_KERNELS", str(tmp_path / "chosen"))
    assert compile_source(source, "sm_90").code
    assert len(list((tmp_path / "chosen").iterdir())) == 2


@needs_nvrtc
def test_a_body_that_does_not_compile_gives_the_log_and_its_line(tmp_path: Path) -> None:
    bad = '// a comment\nextern "C" __global__ void broken() {\n  int x = undefined_name + 1;\n}\n'
    with pytest.raises(DeviceError) as caught:
        compile_source(bad, "sm_90", folder=tmp_path)
    said = str(caught.value)
    assert "do not compile for sm_90" in said
    assert 'identifier "undefined_name" is undefined' in said
    assert "line 3: int x = undefined_name + 1;" in said
    assert not list(tmp_path.iterdir())


# ---- text ---------------------------------------------------------------------------------------------------


def test_a_source_stands_alone_with_every_header_once() -> None:
    made = on_device(cb.compile(*rich(world(7, 20, ordered=True).tables, True)), host_runtime(1))
    text = expanded(made.source.text())
    assert '#include "' not in text
    assert "#pragma once" not in text
    heads = [line for line in text.splitlines() if line.startswith("// ---- ") and line.endswith(".h")]
    assert len(heads) == len(set(heads)) > 5


def test_the_same_plan_gives_the_same_source_whatever_the_size_of_its_chunks() -> None:
    texts = set()
    for capacity in (256, 5000):
        plan = cb.compile(*rich(world(7, 20, ordered=True).tables, True))
        texts.add(on_device(plan, host_runtime(1), capacity=capacity).source.text())
    assert len(texts) == 1


def test_launches_are_one_a_layer_whatever_the_number_of_operators() -> None:
    table = pa.table({"id": [1, 2], "a": ["x", "y"], "b": ["u", "v"]})
    launched = []
    for crosses in (1, 40):
        runtime = HostRuntime(level="-O0")
        sparse = {f"c{k}": cb.cross("a", "b", limit=1).key(space=f"{k}") for k in range(crosses)}
        made = on_device(cb.compile(cb.View(table, key="id"), cb.FeatureSet(sparse=sparse)), runtime)
        list(made.batches(10))
        layers = [name for name in runtime.launched if name.startswith("layer")]
        assert layers == [layer.name for layer in made.layout.layers]
        assert runtime.launched[: len(made.source.launches)] == made.source.launches
        launched.append(len(made.source.launches))
    assert launched[0] == launched[1]


def test_layers_cut_in_two_give_the_same_batches() -> None:
    """As layers are whose kernels need too many registers."""
    plan = cb.compile(cb.View(log_table(600), key="id").filter(col("n") != 2), features())
    made = agree(plan, HostRuntime(level="-O0", registers=255), (100, 1000))
    assert [name for name in made.source.launches if name.endswith("_alone")]


def test_more_stretches_than_a_grid_is_high_are_copied() -> None:
    made = on_device(
        cb.compile(cb.View(log_table(2), key="id"), cb.FeatureSet(dense={"x": col("x")})), HostRuntime(level="-O1")
    )
    count = 2 * MOST_STRETCHES + 3
    source, target = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    table = np.full((count, 4), -1, np.int64)
    table[:, 0] = source.data_ptr() + 8 * np.arange(count)
    table[:, 1] = target.data_ptr() + 8 * np.arange(count)
    table[:, 2] = 8
    made.maker.copy(table)
    assert torch.equal(source, target)


# ---- constants ----------------------------------------------------------------------------------------------

FLOATS = st.floats(allow_subnormal=True) | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, float("nan")])
WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.binary(max_size=70)


def written(lines: list[str], words: int, head: list[str] | None = None) -> np.ndarray:
    """What a kernel of these lines puts into `out`, a number of 64 bits each."""
    body = "".join(f"  {line}\n" for line in lines)
    text = "".join(
        [
            '#include "cuda/chunk_memory.h"\nusing namespace cb;\n',
            *(head or []),
            'extern "C" __global__ void put(uint64_t* out) {\n',
        ]
    )
    kernels = HostRuntime(level="-O0").compile(f"{text}{body}}}\n", ["put"])
    out = torch.zeros(words, dtype=torch.int64)
    kernels["put"]((1, 1), 1, out.data_ptr())
    return out.numpy().view(np.uint64)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(FLOATS, max_size=200), st.lists(WHOLE, max_size=200))
def test_numbers_written_into_source_keep_their_bits(floats: list[float], ints: list[int]) -> None:
    lines = [f"out[{k}] = (uint64_t)__double_as_longlong({real(x)});" for k, x in enumerate(floats)]
    lines += [f"out[{len(floats) + k}] = (uint64_t){whole(n)};" for k, n in enumerate(ints)]
    got = written(lines, len(lines) + 1)[: len(lines)].tolist()
    assert got == [struct.unpack("<Q", struct.pack("<d", x))[0] for x in floats] + [n % 2**64 for n in ints]


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TEXTS, min_size=1, max_size=60))
def test_texts_written_into_source_keep_their_bytes(texts: list[bytes]) -> None:
    source = Source(Layout([Recorded()], [], []))
    lines, at, places = [], 0, []
    for text in texts:
        lines += [
            f"{{ const Str s = {source.string(text)}; out[{at}] = s.n;",
            f"  memcpy(out + {at + 1}, s.p, s.n + 16); }}",
        ]
        places.append(at)
        at += 1 + (len(text) + 16 + 7) // 8
    got = written(lines, at, source.constants())
    for text, place in zip(texts, places, strict=True):
        assert got[place] == len(text)
        assert got[place + 1 :].tobytes()[: len(text) + 16] == text + bytes(16)  # with room to read behind them


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(FLOATS, min_size=1, max_size=20),
    st.lists(WHOLE, min_size=1, max_size=20),
    st.lists(TEXTS, min_size=1, max_size=20),
)
def test_constants_of_expressions_reach_their_operators(
    floats: list[float], ints: list[int], texts: list[bytes]
) -> None:
    columns: dict[str, Any] = {}
    for k, x in enumerate(floats):
        columns |= {f"f{k}": col("x").fill(x), f"g{k}": cb.when(col("x") == x).then(x).otherwise(col("x"))}
    for k, n in enumerate(ints):
        columns |= {f"i{k}": col("n") + n, f"j{k}": cb.max_("n", cb.lit(n)), f"h{k}": cb.lit(n).hash()}
    for k, text in enumerate(texts):
        columns |= {f"s{k}": cb.concat(col("s"), cb.lit(text)), f"t{k}": col("s").fill(text), f"u{k}": col("s") < text}
    table = pa.table({"x": [1.5, None, -0.0], "n": [1, None, -(2**63)], "s": pa.array([b"a", None, b""], pa.binary())})
    Registers(columns, table, host_runtime(1)).check(table)
