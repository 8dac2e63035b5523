# Every target sets itself up on a bare machine: a virtual environment in .venv, packages through constraints.txt.
# A second run reuses what is there and starts at once.

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: ## the model at work, a small one trained beside it, both compared: demo/index.html, in about five minutes
	@tools/setup earth,plot
	@$(BIN)/python examples/demo.py

test: ## the test suite, two processes
	@tools/setup dev
	@$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: ## suites that take minutes: memory at a million points
	@tools/setup dev
	@$(BIN)/python -m pytest -m slow

check: ## style, types and the direction of imports
	@tools/setup dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

explorer: ## build the page of `tessearth explore` from web/ (needs Node 20)
	@command -v npm > /dev/null || { echo "building the page needs Node 20 with npm" >&2; exit 2; }
	@cd web && npm install --no-save --no-audit --no-fund --loglevel=error && npm run build
	@PYTHONPATH=src python3 -c "from pathlib import Path; from tessearth.explorer import page; page.write_record(Path('web'))"

figures: ## draw every figure of docs/figures from the shipped model (minutes)
	@tools/setup dev
	@tools/figures

constraints: ## make constraints.txt anew from pyproject.toml
	@tools/setup dev
	@tools/make_constraints

clean: ## remove the virtual environment and what tools left behind
	rm -rf .venv build dist demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: explorer figures help demo test test-slow check constraints clean
