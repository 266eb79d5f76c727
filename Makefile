# Everything runs in a virtual environment of its own; python3, pip and make are all it needs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CORE   := $(VENV)/.core
LOCK   := constraints.txt
SCANNER := $(wildcard src/traceana/readers/compiled/*.[ch])
DEMO   := fixtures/gpu/alexnet_b128.json.gz

.DEFAULT_GOAL := help
SEED    ?=
VERSION ?=
DRY     ?=
COUNT   ?= 2000
FORMATS ?=
MINUTES ?=
JOBS    ?=
# Byte code is kept: else every process that a test starts compiles traceana again.
unexport PYTHONDONTWRITEBYTECODE
# Each imports frameworks and opens traces anew.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(6, os.cpu_count() or 1))')
.PHONY: help demo test test-all test-fast test-pythons fuzz lint bench backtest docs site release lock clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 12

demo: $(CORE) ## Set up, and report on a recording of an H100, on the terminal and as a page
	$(BIN)/traceana report $(DEMO)
	$(BIN)/traceana report $(DEMO) --output report.html --force
	@echo "The same with pictures: $(CURDIR)/report.html"

# A file stays with one worker: its recordings are made once. The tests of a shared trace stay with
# one too, which opens it once (tests/support/scheduling.py).
test: $(READY) ## Set up, and run the tests
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile

test-all: $(READY) ## All tests, also those that are marked exhaustive
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --exhaustive

test-fast: $(READY) ## The tests that neither start a framework nor take long
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile -m "not frameworks and not slow"

test-pythons: $(READY) ## The tests of test-fast on the other Pythons that are found here
	$(BIN)/python -m tools.pythons --numprocesses $(WORKERS) --dist loadfile

fuzz: $(READY) ## Damaged and hostile inputs: SEED, COUNT, FORMATS, MINUTES, JOBS (docs/reliability.md)
	$(BIN)/python -m tests.fuzz.scanner $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.fuzz --count $(COUNT) $(if $(SEED),--seed $(SEED)) \
	  $(if $(FORMATS),--formats $(FORMATS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JOBS),--jobs $(JOBS))

lint: $(READY) ## Check style, types, layers and the printed output in the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.consoles

bench: $(READY) ## Measure speed and memory beside the peers (minutes, and gigabytes of scratch space)
	$(BIN)/python -m benchmarks

backtest: $(READY) ## Compare predictions of whatif with what happens: half an hour, on a quiet machine
	$(BIN)/python -m benchmarks.backtest --output backtest.json

docs: $(READY) ## Make anew the pages that are generated
	$(BIN)/python -m traceana.cli.reference > docs/cli.md
	$(BIN)/python -m traceana.cli.reference exit-codes > docs/exit-codes.md
	$(BIN)/python -m traceana.cli.reference man > docs/traceana.1
	$(BIN)/python -m tools.api
	$(BIN)/python -m tools.formats
	$(BIN)/python -m tools.tables
	$(BIN)/python -m tools.columns
	$(BIN)/python -m tools.flops
	$(BIN)/python -m tools.advice
	$(BIN)/python -m tools.planted
	$(BIN)/python -m tools.gallery
	$(BIN)/python -m tools.consoles --write

site: $(READY) ## Build the documentation: build/site/index.html, which opens without a server
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "$(CURDIR)/build/site/index.html; links to other hosts: build/external-links.txt"

release: $(READY) ## Commit, tag, build, check and try a release: VERSION=1.2.3 DRY=yes; publishes nothing
	$(BIN)/python -m tools.release $(VERSION) $(if $(DRY),--dry-run)

lock: $(READY) ## Write down the versions that are installed here, for `make test` elsewhere
	$(BIN)/python -m tools.lock > $(LOCK)

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Debian's python3 comes without ensurepip; pip itself can then fill the environment.
$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV) || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

# Installing compiles the scanner in place, where there is a C compiler.
$(CORE): pyproject.toml $(SCANNER) | $(VENV)/bin/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[html]'
	@touch $@

$(READY): pyproject.toml $(LOCK) $(SCANNER) | $(VENV)/bin/pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(LOCK) --editable '.[dev]'
	@touch $@ $(CORE)
