# Everything a developer or a pipeline runs. `make` prints this list; each target makes its own environment in .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := -p muster -p muster_admission -p muster_queue_manager -p muster_fair_share -p muster_preemptor \
  -p muster_topology_updater -p muster_binder
WORKERS ?= 2
INSTANCES ?= 5000
SEEDS ?= 200
ARGS ?=

.PHONY: help run up test check fmt proto docs bench simulate fairness properties mutants e2e lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- use it -----------------------------------------------------------------------------------------------------------

run: $(STAMP)  ## everything on this machine, replaying a trace (TRACE=file, ONESHOT=1 ends after the summary)
	@$(BIN)/muster up --replay "$(or $(TRACE),sample)" $(if $(ONESHOT),--oneshot) $(ARGS)

up: $(STAMP)  ## everything on this machine, without a workload
	@$(BIN)/muster up $(ARGS)

# --- work on it -------------------------------------------------------------------------------------------------------

test: $(STAMP)  ## all tests but the kill tests (ARGS="-k name -x", WORKERS=0 runs them in one process)
	@$(BIN)/python -m pytest tests --ignore-glob='*/test_kill*' -q -n $(WORKERS) --dist loadfile $(ARGS)

check: $(STAMP)  ## what a pipeline checks: format, lint, types, layers, generated code, API compatibility
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python protos/generate.py --check
	$(BIN)/python docs/generate_lifecycle.py --check

fmt: $(STAMP)  ## put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(STAMP)  ## generate libs/muster/api from protos/
	$(BIN)/python protos/generate.py

docs: $(STAMP)  ## generate docs/lifecycle.md from the table
	$(BIN)/python docs/generate_lifecycle.py

bench: $(STAMP)  ## measure everything against its target, median of five (ARGS="pipeline --runs 3", ARGS=--profile)
	@$(BIN)/python -m loadtest $(ARGS)

simulate: $(STAMP)  ## deterministic simulation with faults over SEEDS seeds
	SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/simulation -q -n $(WORKERS) --dist loadfile $(ARGS)

fairness: $(STAMP)  ## usage against entitlement over time, 100,000 GPUs, a tree ten levels deep (ARGS="tree --seed 2")
	@$(BIN)/python -m tests.simulation.fairness $(ARGS)

properties: $(STAMP)  ## entitlements, preemption and more against naive readings of the rules, on INSTANCES random cells
	INSTANCES=$(INSTANCES) $(BIN)/python -m pytest tests/property -q -n $(WORKERS) --timeout=1800 $(ARGS)

mutants: $(STAMP)  ## plant known bugs one by one and show that the tests catch each
	$(BIN)/python -m tests.simulation.mutants $(ARGS)

e2e: $(STAMP)  ## kill -9 and pause real processes during a replay, 30 times (SEED=n: another order)
	@$(BIN)/python -m pytest tests/e2e/test_kills.py -q -s $(ARGS)

lock: $(STAMP)  ## pin requirements/*.in to exact versions with hashes
	$(BIN)/uv pip compile -q --no-header --universal --generate-hashes --no-emit-index-url --python-version 3.11 requirements/dev.in -o requirements/dev.txt
	$(BIN)/uv pip compile -q --no-header --universal --generate-hashes --no-emit-index-url --python-version 3.11 -c requirements/dev.txt requirements/runtime.in -o requirements/runtime.txt

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist run var .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment --------------------------------------------------------------------------------------------------

# Again only when the requirements or the package's description changed. uv itself comes from the same locked file.
$(STAMP): requirements/dev.txt pyproject.toml
	@began=$$(date +%s); echo "making the environment in $(VENV) ..."; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	sed -n '/^uv==/,/^ *# via/p' requirements/dev.txt > $(VENV)/uv.txt; \
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt; \
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements/dev.txt; \
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .; \
	touch $@; echo "environment ready ($$(( $$(date +%s) - began )) s)"
