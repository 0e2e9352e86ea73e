"""The CUDA engine's kernels on the CPU: the same generated source, compiled by g++. Memory is torch's CPU memory.

`HostRuntime()`: a block is one thread (CB_HOST_BLOCKS), blocks run one after the other; fast, and operator bodies take
the paths of a CPU. `HostRuntime(threads=256)`: a block is 256 fibers that meet at __syncthreads and in warp shuffles as
threads do, and bodies take the paths of a GPU (__CUDA_ARCH__): what only a GPU would run, but for the parallelism.
``order`` -1 lets the last thread of a block run first: a result that depends on it is a race. Threads of a block that
never meet at a barrier are an AssertionError.

Libraries are kept under build/host-kernels by a hash of all that they are made from.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ctrbox.engines.cuda.compiler import expanded, headers

SHIM = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <math.h>
#include <utility>
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __forceinline__ inline
#define __noinline__
struct Three { unsigned x, y, z; };
static Three threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim{1, 1, 1}, gridDim{1, 1, 1};
static inline void __threadfence() {}
template <class T, class U> T atomicAdd(T* p, U v) { T old = *p; *p = old + (T)v; return old; }
template <class T, class U> T atomicMin(T* p, U v) { T old = *p; if ((T)v < old) *p = (T)v; return old; }
template <class T, class U> T atomicMax(T* p, U v) { T old = *p; if ((T)v > old) *p = (T)v; return old; }
template <class T, class U> T atomicOr(T* p, U v) { T old = *p; *p = old | (T)v; return old; }
template <class T, class U> T atomicExch(T* p, U v) { T old = *p; *p = (T)v; return old; }
template <class T, class U, class V> T atomicCAS(T* p, U c, V v) { T old = *p; if (old == (T)c) *p = (T)v; return old; }
static inline long long __double_as_longlong(double x) { long long v; memcpy(&v, &x, 8); return v; }
static inline double __longlong_as_double(long long x) { double v; memcpy(&v, &x, 8); return v; }
"""
ONE_THREAD = r"""
#define CB_HOST_BLOCKS 1
static inline void __syncthreads() {}
template <class F> static int run_block(F f, unsigned, int) { f(); return 0; }
"""
FIBERS = r"""
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return (uint32_t)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }
static inline double __dsqrt_rn(double x) { return sqrt(x); }

// A fiber runs threads of the block one after the other until one waits; then another fiber goes on with the rest. So
// threads that never wait cost a call each. Once begun, fibers change places by longjmp, which asks the kernel nothing.
enum { kMostFibers = 1024, kFiberStack = 1 << 18 };
struct Barrier { unsigned arrived, alive; uint64_t generation; };
struct Fiber { ucontext_t begin; jmp_buf at; bool begun; unsigned thread; Barrier* waits; uint64_t since; };
static Fiber fibers[kMostFibers];
static Fiber* current;
static jmp_buf home;
static Barrier of_block, of_warp[kMostFibers / 32];
static unsigned next_thread, threads_left;
static int thread_order;
static uint64_t lanes[kMostFibers];
static void (*fiber_body)(void*);
static void* fiber_argument;

static void give_way() {
  if (!_setjmp(current->at)) _longjmp(home, 1);
}
static void go_on(Fiber& f) {
  current = &f;
  threadIdx.x = f.thread;
  if (_setjmp(home)) return;
  if (f.begun) _longjmp(f.at, 1);
  f.begun = true;
  setcontext(&f.begin);
}
static void meet(Barrier& b) {
  if (++b.arrived == b.alive) { b.arrived = 0; ++b.generation; return; }
  current->waits = &b;
  current->since = b.generation;
  give_way();
}
static void leave(Barrier& b) {
  if (--b.alive && b.arrived == b.alive) { b.arrived = 0; ++b.generation; }
}
static void fiber_main() {
  for (;;) {
    while (next_thread < blockDim.x) {
      const unsigned k = next_thread++;
      threadIdx.x = current->thread = thread_order < 0 ? blockDim.x - 1 - k : k;
      fiber_body(fiber_argument);
      --threads_left;
      leave(of_block);
      leave(of_warp[current->thread / 32]);
    }
    current->waits = nullptr;
    give_way();
  }
}
static inline void __syncthreads() { meet(of_block); }
static inline void __syncwarp(unsigned = ~0u) { meet(of_warp[threadIdx.x / 32]); }
template <class T> T exchanged(T v, unsigned from) {
  static_assert(sizeof(T) <= 8);
  lanes[threadIdx.x] = 0;
  memcpy(&lanes[threadIdx.x], &v, sizeof v);
  __syncwarp();
  memcpy(&v, &lanes[from], sizeof v);
  __syncwarp();
  return v;
}
template <class T> T __shfl_sync(unsigned, T v, unsigned lane) { return exchanged(v, (threadIdx.x & ~31u) | (lane & 31)); }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned by) {
  return exchanged(v, (threadIdx.x & 31) < by ? threadIdx.x : threadIdx.x - by);
}
template <class T> T __shfl_down_sync(unsigned, T v, unsigned by) {
  return exchanged(v, (threadIdx.x & 31) + by > 31 ? threadIdx.x : threadIdx.x + by);
}
template <class T> T __shfl_xor_sync(unsigned, T v, unsigned by) { return exchanged(v, threadIdx.x ^ by); }
static inline unsigned __ballot_sync(unsigned, int chosen) {
  unsigned mine = threadIdx.x, all = 0;
  lanes[mine] = chosen != 0;
  __syncwarp();
  for (unsigned k = 0; k < 32; ++k) all |= (unsigned)(lanes[(mine & ~31u) + k] == 1) << k;
  __syncwarp();
  return all;
}

// 0, or 1: some threads wait for others that never come.
template <class F> static int run_block(F f, unsigned threads, int order) {
  fiber_body = [](void* g) { (*(F*)g)(); };
  fiber_argument = &f;
  of_block = {0, threads, 0};
  for (unsigned w = 0; w * 32 < threads; ++w) of_warp[w] = {0, threads - w * 32 < 32 ? threads - w * 32 : 32, 0};
  next_thread = 0;
  threads_left = threads;
  thread_order = order;
  unsigned used = 0;
  while (next_thread < threads) {
    Fiber& fiber = fibers[used++];
    if (!fiber.begun) {
      getcontext(&fiber.begin);
      fiber.begin.uc_stack.ss_sp = malloc(kFiberStack);
      fiber.begin.uc_stack.ss_size = kFiberStack;
      makecontext(&fiber.begin, fiber_main, 0);
    }
    go_on(fiber);
  }
  while (threads_left) {
    bool moved = false;
    for (unsigned k = 0; k < used; ++k) {
      Fiber& fiber = fibers[k];
      if (!fiber.waits || fiber.waits->generation == fiber.since) continue;
      fiber.waits = nullptr;
      moved = true;
      go_on(fiber);
    }
    if (!moved) return 1;
  }
  threadIdx.x = 0;
  return 0;
}
"""
TAIL = r"""
template <class... A, size_t... K>
static int run_blocks(void (*f)(A...), const uint64_t* sizes, const uint64_t* args, std::index_sequence<K...>) {
  gridDim = {(unsigned)sizes[0], (unsigned)sizes[1], 1};
  blockDim = {(unsigned)sizes[2], 1, 1};
  for (unsigned y = 0; y < sizes[1]; ++y)
    for (unsigned x = 0; x < sizes[0]; ++x) {
      blockIdx = {x, y, 0};
      if (run_block([&] { f((A)args[K]...); }, blockDim.x, (int)sizes[3])) return 1;
    }
  return 0;
}
template <class... A>
static int run_blocks(void (*f)(A...), const uint64_t* sizes, const uint64_t* args) {
  return run_blocks(f, sizes, args, std::make_index_sequence<sizeof...(A)>{});
}
"""
COMPILER = shutil.which("g++") or shutil.which("c++")
FOLDER = Path(__file__).parents[1] / "build" / "host-kernels"
MOST_KEPT = 400  # libraries of 100 KB, the ones used last


class HostKernel:
    def __init__(self, runtime: HostRuntime, library: ctypes.CDLL, name: str) -> None:
        self.name, self.registers, self.spilled = name, runtime.registers, 0
        self.runtime = runtime
        self.function = getattr(library, f"host_{name}")

    def __call__(self, grid: tuple[int, int], block: int, *args: int) -> None:
        assert 0 < grid[0] < 2**31, f"kernel {self.name}: a grid of {grid}"
        assert 0 < grid[1] < 65_536, f"kernel {self.name}: a grid of {grid}"
        assert 0 < block <= 1024, f"kernel {self.name}: a block of {block} threads"
        block = block if self.runtime.threads > 1 else 1
        sizes = (ctypes.c_uint64 * 4)(*grid, block, self.runtime.order & (2**64 - 1))
        given = (ctypes.c_uint64 * max(1, len(args)))(*[a & (2**64 - 1) for a in args])
        with self.runtime.lock:  # blocks share static memory
            self.runtime.launched.append(self.name)
            stuck = self.function(sizes, given)
        assert not stuck, f"kernel {self.name}: some threads of a block wait at a barrier that others never reach"


class HostRuntime:
    """A runtime as `ctrbox.engines.cuda.runtime.Runtime` asks for; ``launched``: the kernels launched, in order."""

    def __init__(
        self, threads: int = 1, *, order: int = 1, sanitize: bool = False, level: str = "-O1", registers: int = 0
    ) -> None:
        self.device = torch.device("cpu")
        self.threads, self.order = threads, order
        self.registers = registers  # that every kernel is said to need
        # A large source compiles in a third of the time with -O0. Without -fno-gnu-unique the static memory of an inline
        # function, which stands for __shared__, would be one for all libraries of the process.
        # _FORTIFY_SOURCE, which some g++ set, takes a longjmp to another fiber's stack for an error.
        self.flags = [level, "-std=c++20", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-w", "-fno-gnu-unique"]
        self.flags.append("-U_FORTIFY_SOURCE")
        if sanitize:
            self.flags.append("-fsanitize=undefined")  # tells on the standard error, and goes on
        self.shim = SHIM + (ONE_THREAD if threads == 1 else FIBERS)
        self.lock = threading.Lock()
        self.launched: list[str] = []

    def compile(self, source: str, names: Sequence[str], *, name: str = "plan") -> dict[str, HostKernel]:
        calls = "".join(
            f'extern "C" int host_{n}(const uint64_t* sizes, const uint64_t* args) '
            f"{{ return run_blocks({n}, sizes, args); }}\n"
            for n in names
        )
        library = ctypes.CDLL(str(self.library(source + TAIL + calls, short=True)))
        return {n: HostKernel(self, library, n) for n in names}

    def library(self, text: str, *, short: bool = False) -> Path:
        """A source as a library; ``short``: it stands behind what `headers` includes."""
        place = kept(".so", self.flags, self.shim, expanded(text), short)
        if place.exists():
            os.utime(place)
            return place
        with beside(place) as aside:
            file = aside / "kernels.cpp"
            file.write_text(f'#include "{self.headers()}"\n{text}' if short else text)
            run(self.flags, "-shared", f"-I{headers()}", file, "-o", aside / "kernels.so")
            (aside / "kernels.so").replace(place)
        prune()
        return place

    def headers(self) -> Path:
        """A file that includes what generated sources include, compiled once: it takes longer than their kernels."""
        text = self.shim + "".join(f'#include "{name}"\n' for name in INCLUDED)
        place = kept(".h", self.flags, expanded(text))
        if not place.with_suffix(".h.gch").exists():
            with beside(place) as aside:
                file = aside / "included.h"
                file.write_text(text)
                run(self.flags, f"-I{headers()}", "-x", "c++-header", file, "-o", aside / "included.h.gch")
                file.replace(place)
                (aside / "included.h.gch").replace(place.with_suffix(".h.gch"))
        return place


INCLUDED = [
    *(
        f"operators/{name}.h"
        for name in ("decimal", "edit_distance", "hash", "json", "lists", "table_lookup", "numbers")
    ),
    *(f"operators/{name}.h" for name in ("sets", "strings", "times", "unicode")),
    *(f"cuda/{name}.h" for name in ("load_columns", "kernel_shapes", "write_outputs")),
]


def kept(suffix: str, *made_from: Any) -> Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    return FOLDER / (hashlib.sha256(repr((version(), made_from)).encode()).hexdigest()[:24] + suffix)


@contextlib.contextmanager
def beside(place: Path) -> Iterator[Path]:
    """A folder for what becomes ``place`` once it is whole: another process may make the same."""
    with tempfile.TemporaryDirectory(dir=place.parent) as aside:
        yield Path(aside)


def run(*command: Any) -> None:
    assert COMPILER is not None, "the CUDA engine's tests need a C++ compiler"
    flags, *rest = command
    done = subprocess.run([COMPILER, *flags, *rest], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"generated source does not compile:\n{done.stderr[:4000]}")


def prune() -> None:
    """Forget all but what was used last."""
    for pattern, most in (("*.so", MOST_KEPT), ("*.h*", MOST_KEPT // 10)):
        known = sorted(FOLDER.glob(pattern), key=lambda p: p.stat().st_mtime if p.exists() else 0.0)
        for old in known[:-most]:
            old.unlink(missing_ok=True)


@cache
def version() -> str:
    return subprocess.run([str(COMPILER), "--version"], capture_output=True, text=True, check=True).stdout
