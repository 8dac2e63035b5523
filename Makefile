# Every target sets itself up on a bare machine: a virtual environment in .venv, packages through constraints.txt.
# A second run reuses what is there and starts at once.

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: ## embed a few named places and find their nearest sites
	@tools/setup earth
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

constraints: ## make constraints.txt anew from pyproject.toml
	@tools/setup dev
	@tools/make_constraints

clean: ## remove the virtual environment and what tools left behind
	rm -rf .venv build dist demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help demo test test-slow check constraints clean
