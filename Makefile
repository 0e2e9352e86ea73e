# Developer commands. Every target depends on `setup`, which does nothing when nothing changed. Three do not: `demo` installs only
# what it runs with; `wheel` and `test-wheel` make small environments of their own, since a machine that makes releases needs no
# torch.
#
#   PYTHON=python3.12       the interpreter .venv is made from
#   VENV_FLAGS=--system-site-packages    a machine without an index that already has torch
#   PYTEST_FLAGS=…          more arguments for pytest
#   GPU_JOBS=…              processes of make test-gpu: most of its time is NVRTC's
#   PY=python3 SETUP=       test-gpu and bench-gpu with an interpreter that has ctrbox installed; no .venv is made
#   QUICK=1                 bench-gpu at its quick sizes
#   ORACLE_FLAGS=…          of test-oracle: other sizes or another seed, such as "--files 500 --seed 8"
#   RUNS=… ONLY=frame,json   of fuzz: runs of each target, and which; FUZZ_CXX=clang++ another clang
#   MUTANTS=… SEED=…        number of changes of test-mutants and the seed of their sample
#   JOBS=…                  compilers, tests and fuzz targets at a time: as many as there are cores unless given
#   PREFIX=…                of capi: where it is installed
#   OUT=file                of bench-gpu: where the JSON lines go, .cache/bench-gpu.jsonl unless given here
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV_FLAGS ?=
PYTEST_FLAGS ?=
GPU_JOBS ?= 6
ORACLE_FLAGS ?=
SANITIZERS ?= address,undefined thread
DEMO_ROWS ?= 2000000
RUNS ?= 1000000
MUTANTS ?= 100
SEED ?= 1
ONLY ?=
FUZZ_CXX ?= clang++-14
PREFIX ?= $(CURDIR)/build/capi/prefix
SETUP ?= setup
QUICK ?=
ifneq ($(origin OUT),command line)
OUT := .cache/bench-gpu.jsonl
endif

BIN := .venv/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check
# Compilers and tests share the cores of the machine.
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
# Each process of pytest begins with tests that lie side by side, and takes from another process when it has none left. So the
# fixtures of a module are seldom made twice.
SHARED = -n $(JOBS) --dist worksteal
# Tests start hundreds of processes; each would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

NATIVE := $(shell find native -name '*.h' -o -name '*.hpp' -o -name '*.cpp' 2>/dev/null)
PYTHON_PATHS := $(wildcard src tests benchmarks examples tools)

.PHONY: help setup runnable native demo test test-fast test-sanitize fuzz capi test-gpu test-exhaustive test-mutants test-oracle test-hdfs test-trackers bodies bench bench-gpu lint format docs wheel test-wheel clean

help:  ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- setup ----------------------------------------------------------------------------------------------------------
#
#   .created ──► .tools ──► .core        the native core is compiled: minutes of every core
#                       └─► .packages    meanwhile pip fetches what `ctrbox` needs to run
#                               └─► .installed    and, for everything but `make demo`, what development needs
#
# The two branches never install the same package, so both may write into .venv at once.

setup: .venv/.tools  ## make .venv and install everything for development
	@$(MAKE) --no-print-directory -j 2 .venv/.installed .venv/.native

# Whoever only runs ctrbox needs few packages.
runnable: .venv/.tools
	@$(MAKE) --no-print-directory -j 2 .venv/.packages .venv/.native

# Python compiles a module when it is first imported. Compiling all modules of all packages at once takes longer than the demo.
INSTALL := $(PIP) install -q --prefer-binary --no-compile --no-warn-conflicts -c constraints.txt

.venv/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ctrbox needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: its ensurepip is missing." >&2; \
	  echo "On Debian and Ubuntu: apt install python3-venv python3-dev. Then run make setup again." >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "No C++ compiler found (looked for $${CXX:-c++}). On Debian and Ubuntu: apt install g++." >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV_FLAGS) .venv
	@touch $@

.venv/.tools: .venv/.created pyproject.toml constraints.txt tools/requirements.py
	@$(PY) tools/requirements.py --build > .venv/build.txt
	$(INSTALL) -r .venv/build.txt
	@touch $@

.venv/.packages: .venv/.tools
	@$(PY) tools/requirements.py > .venv/packages.txt
	$(INSTALL) -r .venv/packages.txt
	@touch $@

.venv/.installed: .venv/.packages
	@$(PY) tools/requirements.py dev > .venv/development.txt
	$(INSTALL) -r .venv/development.txt
	@touch $@

.venv/.core: .venv/.tools CMakeLists.txt
	$(INSTALL) --no-deps --no-build-isolation -C cmake.define.CTRBOX_WERROR=ON -e .
	@touch $@ .venv/.native

# The extension lies beside the Python sources (CMakeLists.txt), so a change is one incremental build away.
.venv/.native: .venv/.core $(NATIVE)
	$(BIN)/cmake --build "$$(ls -td build/editable/*/ | head -1)"
	@touch $@

native: .venv/.native  ## rebuild the native extension where native/ changed

# ---- run ------------------------------------------------------------------------------------------------------------

demo: runnable  ## the whole path: generate an ad log, train on it, evaluate, write a report
	$(BIN)/ctrbox demo --rows $(DEMO_ROWS) --out ctrbox-demo

bench: setup  ## every benchmark, at its quick size
	@failed=""; for file in $$(grep -l -- '--quick' $$(grep -l '__main__' benchmarks/*.py) | sort); do \
	  name=$$(basename $$file .py); echo "== python -m benchmarks.$$name --quick" >&2; \
	  $(PY) -m benchmarks.$$name --quick || failed="$$failed $$name"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

GPU_BENCHMARKS := gpu_launch gpu_pool gpu_pages gpu_extract gpu_step gpu_mlperf gpu_pipeline levels

bench-gpu: $(SETUP)  ## every benchmark of the GPU, one after the other; says so where there is none
	@mkdir -p $(dir $(OUT)); : > $(OUT); failed=""; \
	for name in $(GPU_BENCHMARKS); do \
	  echo "== python -m benchmarks.$$name $(if $(QUICK),--quick)"; \
	  if PYTHONUNBUFFERED=1 $(PY) -m benchmarks.$$name $(if $(QUICK),--quick) | tee $(OUT).log; \
	  then tail -n 1 $(OUT).log >> $(OUT); else failed="$$failed $$name"; fi; done; \
	rm -f $(OUT).log; echo "JSON lines are in $(OUT)"; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# ---- check ----------------------------------------------------------------------------------------------------------

test: setup  ## everything but GPU and HDFS: lint, bodies under nvcc, all tests, two sanitizers
	$(MAKE) --no-print-directory -j 2 lint bodies
	@# The sanitizers take the time in which tests of Python wait. Their output follows that of the tests.
	@mkdir -p build; CMAKE_BUILD_PARALLEL_LEVEL=1 nice -n 19 $(MAKE) --no-print-directory test-sanitize \
	  SANITIZERS=address,undefined JOBS=1 >build/sanitizers.log 2>&1 & sanitizers=$$!; failed=0; \
	$(PY) -m pytest $(SHARED) -m 'not gpu and not hdfs and not exhaustive' $(PYTEST_FLAGS) || failed=$$?; \
	wait $$sanitizers || failed=1; tail -n 200 build/sanitizers.log; exit $$failed

test-fast: setup  ## about ten minutes on two cores: no slow, S3, HDFS or GPU tests
	$(PY) -m pytest -q $(SHARED) -m 'not slow and not s3 and not gpu and not hdfs and not exhaustive' $(PYTEST_FLAGS)

test-sanitize: setup  ## native tests under the address, undefined-behavior and thread sanitizers
	@set -e; for kind in $(SANITIZERS); do \
	  echo "== $$kind sanitizer"; \
	  $(BIN)/cmake -S . -B build/sanitize/$$kind -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
	    -DCTRBOX_SANITIZE=$$kind --log-level=WARNING >/dev/null; \
	  $(BIN)/cmake --build build/sanitize/$$kind; \
	  $(BIN)/ctest -j $(JOBS) --test-dir build/sanitize/$$kind --output-on-failure --no-tests=ignore; done

fuzz: setup  ## libFuzzer over every native parser: RUNS of each, under the address and undefined-behavior sanitizers
	@command -v $(FUZZ_CXX) >/dev/null || { \
	  echo "make fuzz needs clang and its libFuzzer; $(FUZZ_CXX) was not found. On Debian and Ubuntu: apt install clang-14." >&2; exit 1; }
	$(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" -DCMAKE_CXX_COMPILER=$(FUZZ_CXX) \
	  -DCTRBOX_FUZZ=ON --log-level=WARNING >/dev/null
	$(BIN)/cmake --build build/fuzz
	$(PY) tools/fuzz_seeds.py build/fuzz/seeds
	$(PY) tools/fuzz.py build/fuzz --runs $(RUNS) --jobs $(JOBS) --only "$(ONLY)"

capi: setup  ## libctrbox, its header and its pkg-config file, into PREFIX
	$(BIN)/cmake -S . -B build/capi -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" -DCTRBOX_CAPI=ON \
	  -DCMAKE_INSTALL_PREFIX="$(PREFIX)" -DCMAKE_CXX_FLAGS_RELEASE="-O3 -DNDEBUG" --log-level=WARNING >/dev/null
	$(BIN)/cmake --build build/capi
	$(BIN)/cmake --install build/capi >/dev/null

test-gpu: $(SETUP)  ## tests that need a CUDA device, then memcheck and racecheck over a short program
	$(PY) -m pytest tests/gpu -n $(GPU_JOBS) $(PYTEST_FLAGS) || [ $$? -eq 5 ]
	@tool=$$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true); \
	if [ -z "$$tool" ]; then echo "compute-sanitizer is not installed: memcheck and racecheck are left out"; exit 0; fi; \
	for kind in "memcheck --report-api-errors no" racecheck; do \
	  echo "== compute-sanitizer --tool $$kind"; \
	  $$tool --tool $$kind --error-exitcode 1 $(PY) -m tests.gpu.sanitize; done

test-exhaustive: setup  ## longer and repeated checks: many more random plans, more sizes of blocks, longer random sequences
	$(PY) -m pytest -n $(JOBS) -m exhaustive $(PYTEST_FLAGS)

test-mutants: setup  ## random changes to the product's code: how many do the tests catch? MUTANTS= how many, SEED= which
	$(PY) -m tools.mutants --count $(MUTANTS) --seed $(SEED) --jobs $(JOBS)

test-oracle: setup  ## 10,000 random files, 1,000,000 JSON values and every cast against plain Python
	$(PY) -m tests.oracle_suite $(ORACLE_FLAGS)

test-hdfs: setup  ## the same job from a real HDFS
	$(PY) -m pytest -m hdfs $(PYTEST_FLAGS) || [ $$? -eq 5 ]

test-trackers: setup  ## callbacks against the real MLflow and Weights & Biases, which are installed for it
	$(BIN)/pip install -q -c constraints.txt mlflow-skinny wandb
	$(PY) -m pytest tests/train/test_callbacks.py $(PYTEST_FLAGS)

bodies: setup  ## compile every operator body for the GPU, where nvcc is present
	@tools/compile_operator_bodies.sh

lint: setup  ## ruff, mypy, import direction, clang-format, codespell
	$(BIN)/ruff check $(PYTHON_PATHS)
	$(BIN)/ruff format --check $(PYTHON_PATHS)
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .cache/import-linter
	@echo 'clang-format --dry-run --Werror (native/)'
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs native $(filter-out tests,$(PYTHON_PATHS))

format: setup  ## write what lint wants
	$(BIN)/ruff check --fix $(PYTHON_PATHS) || true
	$(BIN)/ruff format $(PYTHON_PATHS)
	$(if $(NATIVE),$(BIN)/clang-format -i $(NATIVE))

# ---- release --------------------------------------------------------------------------------------------------------

docs: setup  ## the documentation site, into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

wheel:  ## a wheel for PYTHON and this architecture that installs without a compiler, into dist
	$(PYTHON) tools/make_wheel.py --python $(PYTHON)

test-wheel:  ## install the newest wheel of dist where no compiler can be found, and run the demo with it
	$(PYTHON) tools/try_wheel.py --python $(PYTHON)

clean:  ## remove builds and caches; keeps .venv
	rm -rf build dist ctrbox-demo .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f src/ctrbox/_native*.so src/ctrbox/_native.pyi .venv/.core .venv/.native
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
