# Every target installs what it needs into .venv first.
PYTHON ?= python3
BUDGET ?= 5m
# The extras of the environment, and the tests of `make slow`.
EXTRAS ?= dev
TESTS ?= tests
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The torch of `make compat`, which lives in an environment of its own.
TORCH ?= 2.15.0
OTHER := .venv-$(TORCH)
OTHER_STAMP := $(OTHER)/.installed

# The Pythons and torches of `make release-check`.
PYTHONS ?= $(PYTHON)
TORCHES ?= 2.13.0

# The oldest dependencies that pyproject.toml allows, for `make lower-bounds`.
LOWER := .venv-lower
LOWER_STAMP := $(LOWER)/.installed
# What uses each of them. The wheel (build, hatchling), the notebook (nbclient, ipykernel) and the browser are slow tests.
USING := tests/analyses/profile/test_recording.py tests/compiler/target/interpreted tests/corpus/replay/test_environments.py \
	tests/corpus/shared/test_passwords.py \
	tests/corpus/test_corpus_durability.py tests/corpus/test_corpus_import.py tests/corpus/test_corpus_outages.py \
	tests/corpus/test_corpus_schema.py tests/deploy tests/docs tests/front/api tests/front/cli/test_completion.py \
	tests/front/cli/test_corpus_lists.py tests/front/cli/test_front_door.py tests/front/cli/test_import_limits.py \
	tests/fuzz/cluster tests/fuzz/generation/test_generation_cases.py tests/fuzz/generation/test_rendering.py \
	tests/fuzz/models tests/fuzz/opinfo/test_sweep.py tests/model tests/report tests/run/execution tests/tools
USING_SLOWLY := tests/front/api/test_in_projects.py::test_a_notebook_shows_reports tests/packaging tests/report/pages/test_in_a_browser.py

.PHONY: fuzz test slow lint doctor docs reports compat lower-bounds release-check clean

fuzz: $(STAMP) ## A short campaign on the device that is there
	$(BIN)/fuzzcompile run --budget $(BUDGET)

test: lint ## What every change must pass: formatter, linter, type checker, and the tests without the slow ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

slow: $(STAMP) ## The tests that take minutes (TESTS="tests/corpus" for some of them)
	$(BIN)/python -m pytest -m slow $(TESTS)

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

lower-bounds: $(LOWER_STAMP) ## Tests of what uses a dependency, with the oldest that pyproject.toml allows of each
	$(LOWER)/bin/python -m pytest -p no:cacheprovider -m "not slow" $(USING)
	$(LOWER)/bin/python -m pytest -p no:cacheprovider -m slow $(USING_SLOWLY)
	$(LOWER)/bin/ruff format --check .
	$(LOWER)/bin/ruff check .

release-check: $(STAMP) ## Wheel and sdist, used in empty environments: make release-check PYTHONS="python3.11 python3.13" TORCHES="2.11.0 2.15.0"
	$(BIN)/python tools/release_check.py --python $(PYTHONS) --torch $(TORCHES)

# With Python 3.11: for later ones, some of these versions have no wheel.
$(LOWER_STAMP): pyproject.toml constraints.txt tools/lower_bounds.py
	test -x $(LOWER)/bin/python || $(PYTHON) -m venv $(LOWER)
	$(PYTHON) tools/lower_bounds.py > $(LOWER)/constraints.txt
	$(LOWER)/bin/python -m pip install --quiet -c $(LOWER)/constraints.txt -e '.[dev,browser,timm]'
	touch $@

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
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
