# Everything runs in .venv, which is made on first use and brought up to date whenever pyproject.toml or constraints.txt
# change. The part that is written in C is compiled again whenever one of its sources changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEVELOPMENT := $(VENV)/.installed-development
CLIENTS := $(VENV)/.installed-clients
WORLDS := $(VENV)/.installed-benchmarks
CORE := $(VENV)/.compiled
NATIVE := src/sb3_extra_buffers/_native
CORE_SOURCES := setup.py $(wildcard src/sb3_extra_buffers/storage/*.pyx src/sb3_extra_buffers/storage/*.pxi) \
	$(filter-out $(NATIVE)/fuzz_% $(NATIVE)/test_%,$(wildcard $(NATIVE)/*.c $(NATIVE)/*.h $(NATIVE)/*.inc))
# Runs a command with a C compiler that is there, or else with one that it installs.
WITH_COMPILER := $(BIN)/python scripts/with_compiler.py
# What is done with the core alone needs no .venv, and is the business of another Makefile.
NATIVE_MAKE = $(MAKE) --no-print-directory -C tests/native PYTHON=$(or $(abspath $(wildcard $(BIN)/python)),$(PYTHON))
# What the demo needs, and the core, should it be compiled again.
FOR_DEMO := -e ".[extra,isal,lz4,zstd]" cython setuptools
FOR_DEVELOPMENT := -e ".[all,dev]"
FOR_CLIENTS := -e ".[all,dev,clients]"
FOR_BENCHMARKS := -e ".[all,dev,benchmarks]"

# Programs that `make bench` runs, in this order; BENCH_ARGS goes to each of them.
BENCHMARKS ?= benchmarks/buffers.py benchmarks/memory.py
BENCHMARKS_LONG ?= benchmarks/first_fill.py benchmarks/startup.py benchmarks/her.py benchmarks/training.py benchmarks/learning.py benchmarks/gpu_buffers.py benchmarks/buffer_stats.py benchmarks/recording.py benchmarks/saving.py benchmarks/rings.py benchmarks/datasets.py benchmarks/checkpoints.py benchmarks/threads.py benchmarks/cluster.py benchmarks/cluster_learning.py benchmarks/million.py
# Rows of the table "Colour and cameras".
CAMERAS ?= mspacman-rgb breakout-rgb carracing carracing-stack doom-rgb doom-rgb-home doom-rgb-stack doom-gray walker ant crafter grid noise
BENCH_ARGS ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=
FUZZ_INPUTS ?= 300000

# One torch thread a test worker: two workers with a pool each would fight for the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
# One thing after the other, whatever -j says: all of it goes into one .venv.
.NOTPARALLEL:
.PHONY: help install demo test test-all lint format bench bench-quick bench-cameras bench-long docs clean distclean
.PHONY: core-warnings core-test sanitize fuzz cross cross-test

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '%-22s %s\n' "$$name" "$$text"; done

install: $(DEVELOPMENT) $(CORE) ## Make .venv and install the package with all extras in it

# pip's output goes to a log; if it fails, its end is shown. $(1) is what to install, $(2) its name, $(3) how long that takes. Modules
# are compiled when they are first imported, not all of torch's now.
define install_quietly
	@test -x $(BIN)/python || { echo "Making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing $(2) into $(VENV) ($(3); the log is $(VENV)/install.log)"
	@if ! $(WITH_COMPILER) $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt $(1) > $(VENV)/install.log 2>&1; then \
		tail -n 40 $(VENV)/install.log; \
		echo "Installing failed, see above; all of it is in $(VENV)/install.log" >&2; \
		exit 1; \
	fi
	@echo "Installed."
	@touch $(CORE) $(INSTALLED) # pip has compiled the core
endef

# The core, compiled to a file beside its source. A fresh install has just done so, which make, having looked before, does not
# know: hence the second look.
$(CORE): $(CORE_SOURCES) | $(INSTALLED)
	@if [ ! -e $@ ] || [ -n "$$(find $(CORE_SOURCES) -newer $@)" ]; then \
		echo "Compiling the core (half a minute; the log is $(VENV)/compile.log)"; \
		if ! $(WITH_COMPILER) $(BIN)/python setup.py build_ext --inplace > $(VENV)/compile.log 2>&1; then \
			tail -n 40 $(VENV)/compile.log; \
			echo "Compiling failed, see above; all of it is in $(VENV)/compile.log" >&2; \
			exit 1; \
		fi; \
		echo "Compiled."; \
	fi
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(call install_quietly,$(FOR_DEMO),the package with torch,a minute or two)

# It has all that the demo needs, so that is not installed as well.
$(DEVELOPMENT): pyproject.toml constraints.txt
	$(call install_quietly,$(FOR_DEVELOPMENT),the package with torch and all extras,a few minutes)
	@touch $@

# RL Zoo and SBX: as large as all the rest but torch, so only where they are run.
$(CLIENTS): $(DEVELOPMENT)
	$(call install_quietly,$(FOR_CLIENTS),RL Zoo and SBX as well,a few minutes)
	@touch $@

# CarRacing, MuJoCo and Crafter: 230 MB that only benchmarks play with.
$(WORLDS): $(DEVELOPMENT)
	$(call install_quietly,$(FOR_BENCHMARKS),CarRacing and MuJoCo and Crafter as well,a minute)
	@touch $@

demo: $(CORE) ## Play Atari, fill SB3's buffer and ours, train with both, compare (3 minutes)
	@echo "$(BIN)/sb3-extra-buffers demo $(DEMO_ARGS)"
	@$(BIN)/sb3-extra-buffers demo $(DEMO_ARGS)

test: $(DEVELOPMENT) $(CORE) ## Run the fast tests (a quarter of an hour on 2 cores)
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(CLIENTS) $(CORE) ## Run all tests, with the training runs, RL Zoo, SBX, older SB3, a browser and the clean install (much longer)
	SB3XB_REQUIRE_BROWSER=1 $(PYTEST) $(PYTEST_ARGS)

lint: $(DEVELOPMENT) $(CORE) ## Check style, formatting and types; the C files compile without warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(WITH_COMPILER) $(NATIVE_MAKE) warnings

format: $(DEVELOPMENT) $(CORE) ## Put the code into the form that lint wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEVELOPMENT) $(CORE) ## Compare with SB3's buffers: memory, add, sample, get (20 minutes)
	@set -e; for program in $(BENCHMARKS); do \
		echo "$(BIN)/python $$program $(BENCH_ARGS)"; \
		$(BIN)/python "$$program" $(BENCH_ARGS); \
	done

bench-quick: $(DEVELOPMENT) $(CORE) ## The same, small and rough (3 minutes)
	$(BIN)/python benchmarks/buffers.py --quick $(BENCH_ARGS)

bench-cameras: $(WORLDS) $(CORE) ## The same for colour and cameras: Doom, cars, robots (an hour; MuJoCo needs libegl1)
	$(BIN)/python benchmarks/buffers.py --dataset $(CAMERAS) $(BENCH_ARGS)

bench-long: $(DEVELOPMENT) $(CORE) ## First fill, starting up, whole training runs, a million transitions (an hour)
	@$(MAKE) bench BENCHMARKS="$(BENCHMARKS_LONG)"

docs: $(DEVELOPMENT) $(CORE) ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

core-warnings: ## Compile the C files with warnings as errors
	@$(NATIVE_MAKE) warnings

core-test: ## Test the core in C, as it is and with AddressSanitizer and UBSan (2 minutes)
	@$(NATIVE_MAKE) test

sanitize: $(DEVELOPMENT) ## The storage and buffer tests with ASan and UBSan, the threads tests with TSan (half an hour)
	@$(NATIVE_MAKE) test threads
	$(BIN)/python scripts/sanitize.py address $(PYTEST_ARGS)
	$(BIN)/python scripts/sanitize.py thread $(PYTEST_ARGS)

fuzz: ## Feed FUZZ_INPUTS broken patches, records and images to the core, with ASan and UBSan
	@$(NATIVE_MAKE) fuzz FUZZ_INPUTS=$(FUZZ_INPUTS) FUZZ_RESULT=$(abspath $(FUZZ_RESULT))

cross: ## Compile the core for arm64 Linux, musl, macOS and Windows
	@$(NATIVE_MAKE) cross

cross-test: ## Test the core on an emulated arm64 processor
	@$(NATIVE_MAKE) cross-test

clean: ## Remove what builds and tests leave behind
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(CORE) src/sb3_extra_buffers/storage/_core.c src/sb3_extra_buffers/storage/_core*.so
	find src tests benchmarks docs examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## The same, and .venv
	rm -rf $(VENV)
