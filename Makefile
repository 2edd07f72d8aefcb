# What a developer types. `make demo` and `make test` need Python 3.11 or newer and nothing else:
# each makes .venv and fills it from its hash-locked requirements first.

VENV   ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
JOBS   ?= 3
PYTEST_ARGS ?=

BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --quiet
ROOT := services schemas projections tools

# Some machines forbid bytecode. A whole run starts hundreds of Pythons: each would compile all of
# refold again, which doubles its start, and each of xdist's every test as well.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all lint format types imports pytest coverage model mutants chaos chaos-projector compiled bench lock hooks clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

# ---- set-up: once for each lock, then instant

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "refold needs Python 3.11 or newer, none is on PATH. Next: install one, or make PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "making $(VENV) with $(PYTHON)" >&2
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) -m venv failed. Kept: nothing was made. Next: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 2; }

$(VENV)/.demo: requirements-demo.lock pyproject.toml | $(BIN)/python
	@echo "installing what the demo needs, from requirements-demo.lock" >&2
	@$(PIP) install --require-hashes -r requirements-demo.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(BIN)/python
	@echo "installing what the tests need, from requirements-dev.lock" >&2
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.demo # everything of the demo's lock is in this one, in the same versions

setup: $(VENV)/.dev ## make .venv and install the locked development tools

# ---- see it

demo: $(VENV)/.demo ## an agent loses its process twice and finishes with one refund
	@$(BIN)/refold demo $(DEMO)

# ---- the gates

test: lint pytest ## everything that must hold before a change lands (at most 10 minutes on two slow cores)

lint: $(VENV)/.dev format types imports ## ruff, mypy --strict, import-linter

format: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy --strict

imports: $(VENV)/.dev
	$(BIN)/lint-imports

pytest: $(VENV)/.dev
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

coverage: $(VENV)/.dev ## all tests with every line and branch counted, which takes half as long again; 89 % are asked for
	@rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

test-all: lint ## the long forms: every seed, every mutant, the whole model
	$(BIN)/python tests/model/check.py all
	$(BIN)/python -m refold.testing.simulate --seeds 0-$$(($${REFOLD_SEEDS:-2000} - 1))
	REFOLD_SEEDS=$${REFOLD_SEEDS:-2000} $(BIN)/pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)
	$(MAKE) mutants

model: $(VENV)/.dev ## explore the protocol exhaustively, its mutations included
	$(BIN)/python tests/model/check.py all

mutants: $(VENV)/.dev ## break the engine on purpose: each break must be caught by its tests
	$(BIN)/python tests/mutants/run.py

chaos: $(VENV)/.dev ## faults on real workers, brokers and networks: a quarter of an hour (CHAOS names scenarios and options)
	PYTHONPATH=tests:examples $(BIN)/python -m chaos $(CHAOS)

chaos-projector: $(VENV)/.dev ## projectors killed 50 times under load, a minute without database (REFOLD_KILLS, REFOLD_AWAY_S): verify finds no difference
	REFOLD_KILLS=$${REFOLD_KILLS:-50} REFOLD_AWAY_S=$${REFOLD_AWAY_S:-60} $(BIN)/pytest -o faulthandler_timeout=0 tests/system/test_projector_killed.py $(PYTEST_ARGS)

# What a step passes through as machine code, in a folder that PYTHONPATH names: docs/adr/0033.
COMPILED := $(CURDIR)/build/compiled

compiled: $(COMPILED) ## refold with its engine compiled, in build/compiled (needs a C compiler; two minutes)

$(COMPILED): $(shell find $(ROOT) -type f -not -path '*/__pycache__/*') pyproject.toml hatch_build.py | $(VENV)/.dev
	@command -v $(CC) > /dev/null || { echo "there is no C compiler ($(CC)). Kept: nothing was made, plain Python is the same program. Next: install one (Debian and Ubuntu: apt install gcc), or set CC" >&2; exit 2; }
	@rm -rf $@ $@.new build/wheel
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(PIP) wheel --no-deps --no-build-isolation -w build/wheel .
	@$(PIP) install --no-deps --target $@.new build/wheel/refold-*.whl
	@mv $@.new $@
	@touch $@

bench: $(if $(PLAIN),$(VENV)/.dev,$(COMPILED)) ## measure refold on this machine, compiled (PLAIN=1: as plain Python; REFOLD_PEERS names the peers' scripts)
	$(if $(PLAIN),,PYTHONPATH=$(COMPILED)) $(BIN)/refold bench $(BENCH)

# ---- the house

lock: $(VENV)/.dev ## write the four lock files again from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra dev --group build --quiet --upgrade -o requirements-dev.lock
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra demo --group build --quiet -c requirements-dev.lock -o requirements-demo.lock
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra services --group build --quiet -c requirements-dev.lock -o requirements-services.lock
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra services --group build --group compile --quiet -c requirements-dev.lock -o requirements-compile.lock

hooks: $(VENV)/.dev ## let git run ruff, mypy and import-linter before each commit (needs pre-commit)
	pre-commit install

clean: ## remove what was built, cached or logged here, and .venv
	rm -rf $(VENV) .refold build dist htmlcov .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache \
		.hypothesis .import_linter_cache
	find $(ROOT) tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
