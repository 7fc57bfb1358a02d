# Everything a fresh machine needs is installed into .venv by the first target that is asked for.
PYTHON ?= python3
BUDGET ?= 5m
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: fuzz test slow lint doctor clean

fuzz: $(STAMP) ## A short campaign on whatever device there is
	$(BIN)/fuzzcompile run --budget $(BUDGET)

test: $(STAMP) ## The tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow"

slow: $(STAMP) ## The tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

doctor: $(STAMP)
	$(BIN)/fuzzcompile doctor

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fuzzcompile needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
