# make run and make test work from an empty checkout: each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test lint check-exhaustive bench-capacity bench-control clean

help:  ## What can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Quire needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

setup: $(STAMP)  ## Create .venv and install Quire with everything the tests need

run: setup  ## Print the memory plan of a hybrid model
	$(BIN)/quire plan gemma-3-27b --device h200

test: setup  ## All tests
	$(BIN)/python -m pytest

lint: setup  ## Formatting, lint, types and the layers of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-exhaustive: setup  ## Every schedule of small systems, two at a time (less than 30 minutes on 2 cores)
	$(BIN)/quire check --exhaustive --processes 2 $(ARGUMENTS)

bench-capacity: setup  ## Waste and requests per model, beside a peer's planner
	$(BIN)/python bench/capacity.py $(ARGUMENTS)

bench-control: setup  ## Python per step, beside vLLM 0.32.0 (installed into .venv-vllm)
	$(BIN)/python bench/control.py $(ARGUMENTS)

clean:  ## Remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
