# Every target installs what it needs into .venv first.
PYTHON ?= python3
BUDGET ?= 5m
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The torch of `make compat`, which lives in an environment of its own.
TORCH ?= 2.15.0
OTHER := .venv-$(TORCH)
OTHER_STAMP := $(OTHER)/.installed

.PHONY: fuzz test slow lint doctor docs reports compat clean

fuzz: $(STAMP) ## A short campaign on the device that is there
	$(BIN)/fuzzcompile run --budget $(BUDGET)

test: lint ## What every change must pass: formatter, linter, type checker, and the tests without the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

slow: $(STAMP) ## The tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(STAMP) ## Formatter, linter, type checker, the measures of language and rooms, and the schema of the report
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tools/mypy.ini
	$(BIN)/python tools/language.py
	$(BIN)/python tools/rooms.py --check
	$(BIN)/python tools/report_schema.py --check

doctor: $(STAMP)
	$(BIN)/fuzzcompile doctor

reports: $(STAMP) ## The reports under reports/ that name their command, made again (NAMES="attribution" for some of them)
	$(BIN)/python tools/reports.py $(NAMES)

docs: $(STAMP) ## The documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir build/site

compat: $(OTHER_STAMP) ## Conformance suite and known issues on another torch: make compat TORCH=2.11.0
	CUDA_VISIBLE_DEVICES= TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(OTHER)/kernels $(OTHER)/bin/python -m pytest -p no:cacheprovider tests/compiler/conformance tests/test_known_issues.py
	CUDA_VISIBLE_DEVICES= $(OTHER)/bin/fuzzcompile doctor --device cpu

# The CPU build if the index has one; otherwise its default build, which on Linux is a CUDA build of 3 to 8 GB that also
# runs without a GPU. constraints.txt pins another torch, so the other packages come unpinned. torch comes last once more,
# in case that it is newer than pyproject.toml allows: pip then warns, and `doctor` lists the hooks that fail.
OTHER_TORCH = $(OTHER)/bin/python -m pip install --quiet 'torch==$(TORCH)+cpu' || $(OTHER)/bin/python -m pip install --quiet 'torch==$(TORCH)'
$(OTHER_STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fuzzcompile needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	$(OTHER_TORCH)
	$(OTHER)/bin/python -m pip install --quiet 'pytest>=8' -e .
	$(OTHER_TORCH)
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fuzzcompile needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
