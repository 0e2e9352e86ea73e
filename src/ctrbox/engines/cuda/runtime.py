"""Runs kernels on a CUDA device: the interface that the engine and the GPU table use, and its implementation.

A kernel takes 64-bit arguments only (addresses and whole numbers) and is launched on torch's current stream, so that
there are no other streams, events, graphs and allocators than those of torch. The tests have a second runtime that runs the
same sources on the CPU, with one thread per block.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch

from ctrbox.engines.cuda.compiler import compile_source, expanded, nvrtc
from ctrbox.engines.cuda.user_row_function import device_code
from ctrbox.errors import DeviceError
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.plan.placement.device_description import gpu_here, gpu_number

NONE: Mapping[str, UserOperator] = MappingProxyType({})


# The GPU takes kernels from so many queues, 8 by default and 32 at most. Kernels of different streams in one queue wait for
# each other, and a plan with a dozen threads that decode Parquet pages has more streams than 8. CUDA reads this when it starts,
# so it is set before anything here can start CUDA.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

ON_THE_CPU = "use the CPU: device='cpu', cb.MemoryTable"


class Kernel(Protocol):
    """One ``__global__`` function."""

    name: str
    registers: int  # a thread
    spilled: int  # bytes a thread

    def __call__(self, grid: tuple[int, int], block: int, *args: int) -> None:
        """Launch the kernel on the current stream, and return at once."""


class Runtime(Protocol):
    """A device that runs kernels on memory of torch."""

    device: torch.device
    threads: int  # of a block

    def compile(
        self, source: str, names: Sequence[str], *, name: str = "plan", scalars: Mapping[str, UserOperator] = NONE
    ) -> dict[str, Kernel]:
        """Return the kernels ``names`` (extern "C") of a source, which may include our headers "operators/…" and "cuda/…".

        ``scalars``: functions that the source only declares (extern "C"), by name; numba compiles them.
        """


class CudaKernel:
    def __init__(self, runtime: CudaRuntime, code: Any, name: str, usage: dict[str, int]) -> None:
        self.name = name
        self.registers = usage.get("registers", 0)
        self.spilled = usage.get("spilled", 0)
        self.runtime = runtime
        self.kernel = code.get_kernel(name)

    def __call__(self, grid: tuple[int, int], block: int, *args: int) -> None:
        self.runtime.launch(self.kernel, grid, block, args)


class CudaRuntime:
    """The GPU that torch sees. Call `cuda_runtime()` to get it; it says what is missing if there is none."""

    threads = 256

    def __init__(self, index: int = 0) -> None:
        self.core = nvrtc()
        self.device = torch.device("cuda", index)
        torch.zeros(1, device=self.device)  # torch makes the context; cuda.core joins it
        made = self.core.Device(index)
        made.set_current()
        self.arch = f"sm_{made.arch}"
        self.streams: dict[int, Any] = {}
        self.threads_bound = threading.local()

    def compile(
        self, source: str, names: Sequence[str], *, name: str = "plan", scalars: Mapping[str, UserOperator] = NONE
    ) -> dict[str, Kernel]:
        linked = {symbol: device_code(op, symbol, self.arch) for symbol, op in scalars.items()}
        compiled = compile_source(expanded(source), self.arch, name=name, linked=linked)
        usage = compiled.usage()
        code = self.core.ObjectCode.from_cubin(compiled.code)
        return {n: CudaKernel(self, code, n, usage.get(n, {})) for n in names}

    def launch(self, kernel: Any, grid: tuple[int, int], block: int, args: Sequence[int]) -> None:
        if self.device.index and torch.cuda.current_device() != self.device.index:
            torch.cuda.set_device(self.device)  # a new thread begins with cuda:0
        if not hasattr(self.threads_bound, "here"):
            self._bind()
        handle = torch.cuda.current_stream(self.device).cuda_stream
        stream = self.streams.get(handle)
        if stream is None:
            stream = self.streams[handle] = self.core.Stream.from_handle(handle)
        self.core.launch(stream, _config(grid, block), kernel, *args)

    def _bind(self) -> None:
        """Make the GPU's context current in this thread. A thread has no context before it calls CUDA's runtime library, and the
        first work of a thread of torch's autograd may be a kernel of ours."""
        from cuda.bindings import driver

        _, context = driver.cuCtxGetCurrent()
        if not int(context):  # otherwise left alone: this stream may be recording
            self.core.Device(self.device.index).set_current()
        self.threads_bound.here = True


@functools.lru_cache(4096)
def _config(grid: tuple[int, int], block: int) -> Any:
    import cuda.core as core

    return core.LaunchConfig(grid=grid, block=block)


_lock = threading.Lock()
_made: CudaRuntime | None = None
_gpu = 0  # number of the GPU of this process
_chosen = False  # whether ``use_gpu`` was called


def cuda_runtime() -> CudaRuntime:
    """Return the runtime of this process; if there can be none, raise a DeviceError that says why."""
    global _made
    with _lock:
        if _made is None:
            missing = why_not()
            if missing:
                raise DeviceError(missing)
            _made = CudaRuntime(_gpu)
        return _made


def use_gpu(index: int) -> None:
    """Choose the GPU of this process, ``cuda:<index>``, before anything has used one."""
    global _gpu, _chosen
    with _lock:
        if index == _gpu:
            _chosen = True
            return
        if _made is not None or _chosen:
            raise DeviceError(
                f"this process already uses cuda:{_gpu} and cannot use cuda:{index} as well; name one GPU everywhere, or use "
                "'cuda', which is the GPU that the process uses"
            )
        present = torch.cuda.device_count()
        if index >= present:
            if not present:
                raise DeviceError(f"there is no cuda:{index}; this machine shows no NVIDIA GPU; {ON_THE_CPU}")
            met = f"{present} GPUs, cuda:0 to cuda:{present - 1}" if present > 1 else "one GPU, cuda:0"
            raise DeviceError(f"there is no cuda:{index}; this machine has {met}; choose one of these")
        torch.cuda.set_device(index)
        _gpu, _chosen = index, True


def use_gpu_of(device: Any) -> None:
    """Choose the GPU that a device such as "cuda:3" names; other devices leave the choice as it is."""
    index = gpu_number(device)
    if index is not None:
        use_gpu(index)


def gpu_of_process() -> torch.device:
    """Return the GPU of this process: cuda:0, unless ``use_gpu`` has chosen another one."""
    return torch.device("cuda", _gpu)


def why_not() -> str:
    """Return why this machine cannot run kernels and what to do about it; empty if it can."""
    if not torch.cuda.is_available() and not gpu_here():
        return f"this machine shows no NVIDIA GPU; {ON_THE_CPU}"
    if not torch.backends.cuda.is_built():
        return f"this torch ({torch.__version__}) is built without CUDA; install a CUDA build of torch, or {ON_THE_CPU}"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"torch finds no usable GPU: {said}; install or update the NVIDIA driver, or {ON_THE_CPU}"
    try:
        nvrtc()
    except DeviceError as error:
        return str(error)
    return ""


def gpu_bytes() -> int | None:
    """Return the bytes of memory of the GPU that this process can use, or None if there is no such GPU."""
    return None if why_not() else int(torch.cuda.get_device_properties(_gpu).total_memory)
