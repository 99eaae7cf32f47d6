.DEFAULT_GOAL := help
.PHONY: help install demo format format-check lint types test system system-packages cov bench bench-smoke examples check clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.installed
SYSTEM := $(VENV)/.installed-system

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

install: $(STAMP) ## make the virtual environment and install the project with its development tools

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## a streamed tool loop on recorded streams, offline
	$(PY) -m agentloop demo

format: $(STAMP) ## rewrite the sources in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --exit-zero --quiet .

format-check: $(STAMP)
	$(BIN)/ruff format --check .

lint: format-check ## format and lint rules
	$(BIN)/ruff check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

test: $(STAMP) ## every test that needs nothing but Python
	$(PY) -m pytest -m "not system and not live"

$(SYSTEM): $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,system]'
	@touch $@

# Programs of the system tests, each with the Debian package that has it. Only what is missing is installed, one after
# the other: a package may bring the program of the next one.
system-packages:
	@fail() { echo "make system needs $$program (Debian package $$package). $$1" >&2; exit 1; }; \
	updated=; PATH="$$PATH:/usr/sbin"; \
	for pair in chromium:chromium nginx:nginx-light node:nodejs npm:npm; do \
	  program=$${pair%%:*} package=$${pair##*:}; \
	  command -v $$program >/dev/null && continue; \
	  command -v apt-get >/dev/null || fail "There is no apt-get here: install it by hand."; \
	  test "$$(id -u)" -eq 0 || fail "Install it, or run this as root."; \
	  test -n "$$updated" || apt-get -qq update || fail "apt-get update failed."; \
	  updated=yes; \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends $$package >/dev/null \
	    || fail "apt-get could not install it."; \
	done

system: system-packages $(SYSTEM) ## tests with servers, browsers, killed processes and load
	@$(PY) -m pytest -m "system and not live"; status=$$?; \
	if [ $$status -eq 5 ]; then echo "no system tests selected"; exit 0; fi; exit $$status

cov: $(STAMP) ## the tests of `test` with branch coverage
	$(PY) -m pytest -m "not system and not live" --cov --cov-report=term

bench: $(STAMP) ## benchmarks: a table
	$(PY) -m benchmarks

bench-smoke: $(STAMP)
	$(PY) -m benchmarks --smoke

examples: $(STAMP) ## run every example, offline
	@set -e; for example in examples/[0-9]*.py; do \
	  test -e "$$example" || continue; echo "== $$example"; $(PY) "$$example"; done

check: lint types test examples bench-smoke ## all that must pass before a change is merged

clean: ## remove caches and build output, keep the virtual environment
	rm -rf build dist htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find agentloop benchmarks examples tests -name __pycache__ -prune -exec rm -rf {} +
