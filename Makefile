# Every target sets itself up on a bare machine: a virtual environment in .venv, packages through constraints.txt.
# A second run reuses what is there and starts at once.

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
# Compiled modules are kept even where the environment says otherwise: tests start hundreds of processes, and to compile
# torch and what else they import takes seconds each time.
export PYTHONDONTWRITEBYTECODE :=

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: ## the shipped model at work, a small one trained, both compared: demo/index.html, in about three minutes
	@tools/setup data,plot
	@$(BIN)/python examples/demo.py

test: ## the test suite, two processes
	@tools/setup dev
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-oldest: ## the suite with the lowest versions that pyproject.toml admits (torch as in constraints.txt)
	@tools/setup dev
	@tools/test_oldest -n 2

test-slow: ## suites that take minutes: memory at a million points
	@tools/setup dev
	@$(BIN)/python -m pytest -m slow

test-faults: ## the whole fault suite, many minutes: kills, full disks, turned bits, broken connections (docs/faults.md)
	@tools/setup dev
	@$(BIN)/python -m pytest tests/faults

mutation: ## share of small faults in encoder, training and evaluation that the tests find (SAMPLE=40 SEED=4)
	@tools/setup dev
	@test -d build/mutation/cosmic_ray || $(BIN)/python -m pip install -q --no-warn-conflicts --target build/mutation cosmic-ray==8.7.0
	@$(BIN)/python tools/mutation.py --sample $(or $(SAMPLE),40) --seed $(or $(SEED),4) --out benchmarks/results/mutation.md

coverage: ## the lines of src that the tests reach, slow suites too: benchmarks/results/coverage.md (most of an hour)
	@tools/setup dev
	@rm -rf build/coverage && mkdir -p build/coverage
	@-OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -n 2 -m "not slow"
	@-OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -n 2 --dist loadfile -m slow
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage report --format=markdown | tee benchmarks/results/coverage.md

check: ## style, types and the direction of imports
	@tools/setup dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

explorer: ## build the page of `tessearth explore` from web/ (needs Node 20)
	@command -v npm > /dev/null || { echo "building the page needs Node 20 with npm" >&2; exit 2; }
	@cd web && npm install --no-save --no-audit --no-fund --loglevel=error && npm run build
	@python3 tools/page_record.py

house: ## size of the source by room: lines, files, long functions, importers, import chains
	@python3 tools/house.py src

journeys: ## files and functions that run when a user embeds, encodes, trains, clicks and evaluates (minutes)
	@tools/setup dev
	@$(BIN)/python tools/journeys.py

figures: ## draw every figure of docs/figures from the shipped model (minutes)
	@tools/setup dev
	@tools/figures

docs: ## build the pages of docs/ into build/docs, without network; a warning or a dead link is an error
	@tools/setup docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/docs/index.html"

fuzz: ## damaged input for everything that takes input, ten minutes a surface (SECONDS_EACH=600 SEED=0 SURFACES="...")
	@tools/setup dev
	@$(BIN)/python tools/fuzz.py $(SURFACES) --seconds $(or $(SECONDS_EACH),600) --seed $(or $(SEED),0)

audit: ## known weaknesses of the pinned versions, by pip-audit (needs the package index)
	@python3 -m venv build/audit && build/audit/bin/python -m pip install -q pip-audit
	@build/audit/bin/pip-audit --no-deps --disable-pip -r constraints.txt || \
	  { echo "found something, or the package index does not say here what is known of a version" >&2; exit 2; }

constraints: ## make constraints.txt and hashes.txt anew from pyproject.toml
	@tools/setup dev
	@tools/make_constraints

clean: ## remove the virtual environment and what tools left behind
	rm -rf .venv build dist demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: audit coverage docs explorer figures fuzz help demo test test-oldest test-slow test-faults house journeys mutation check constraints clean
