# Everything sets itself up: a virtual environment in .venv, pinned versions, a small model made from a package.
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 0

.PHONY: help setup demo test test-fast test-compat lint bench docs clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# A .venv whose Python has gone since (an upgrade of the system's) is made anew.
ifneq ($(wildcard .venv/ready),)
$(shell .venv/bin/python -c "" 2>/dev/null || rm -f .venv/ready)
endif

.venv/ready: pyproject.toml constraints.txt scripts/setup.py
	@$(PYTHON) scripts/setup.py

setup: .venv/ready  ## make .venv ready

demo: .venv/ready  ## run the whole loop: an agent learns while it runs (six to nine minutes; SEED=1)
	@$(BIN)/python -m examples.order_desk.train --seed $(SEED)

test: test-fast  ## run all tests, with the real engine
	@$(BIN)/python -m pytest -m slow -n auto
	@$(BIN)/python -m pytest -m engine

test-fast: .venv/ready  ## run the tests that need no engine
	@$(BIN)/python -m pytest -m "not engine and not slow" -n auto

test-compat:  ## run capture's tests with the oldest and the newest agent libraries, each in its own environment
	@$(PYTHON) scripts/compat.py

lint: .venv/ready  ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: .venv/ready  ## run a benchmark: make bench NAME=...
	@test -f benchmarks/$(NAME).py || { echo "make bench NAME=..., one of: $$(ls benchmarks/*.py | xargs -n1 basename -s .py | tr '\n' ' ')"; exit 1; }
	@$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

docs: .venv/ready  ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove what the targets made, but not .venv
	@rm -rf .art site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
