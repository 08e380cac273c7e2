# `make demo` and `make test` are all a new machine needs: Python 3.11 or newer, and make.
PYTHON ?= python3
BIN := .venv/bin
PIP = $(BIN)/pip install --quiet --disable-pip-version-check
PLAIN := .venv/.plain
INSTALLED := .venv/.installed
# Also where the environment says otherwise: without bytecode every process that a test starts compiles the package again.
export PYTHONDONTWRITEBYTECODE =
RELEASE := build/release
TOOLS := $(RELEASE)/tools/bin
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)".*/\1/p' src/fedflat/__init__.py)
CHECKS = $(MAKE) --jobs=2 --output-sync --no-print-directory lint types imports docs-check

# On a machine whose torch is built for a GPU, uv lists what such a build needs: add the folder of a CPU build, `--find-links`.
.PHONY: help install locked demo check test test-all trials promises matrix accessibility release try-wheel lint types imports docs-check docs clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED)  ## make .venv with the tested versions of everything, also of what tests need

# The hash of every file but torch's is checked; then what another system needs besides is fetched, if there is anything.
$(PLAIN): pyproject.toml constraints.txt locked/plain.txt
	$(PYTHON) -m venv .venv
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --require-hashes --no-deps --requirement locked/plain.txt
	$(PIP) --constraint constraints.txt --no-build-isolation --editable .
	touch $(PLAIN)

$(INSTALLED): $(PLAIN) locked/dev.txt
	$(PIP) --require-hashes --no-deps --requirement locked/dev.txt
	$(PIP) --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	touch $(INSTALLED)

LOCK_TOOLS = uv pip compile --generate-hashes --no-annotate --no-header --quiet --python-version 3.11
LOCK = printf 'hatchling\neditables\n' | $(LOCK_TOOLS) --constraint constraints.txt --no-emit-package torch

locked:  ## write the versions of constraints.txt with the hashes of their files, by uv, from PyPI
	$(LOCK) pyproject.toml - --output-file locked/plain.txt
	$(LOCK) --extra dev pyproject.toml - --output-file locked/dev.txt
	printf 'build\ntwine\nhatchling\ncyclonedx-bom\n' | $(LOCK_TOOLS) - --output-file locked/release.txt
	sed -E -i.cuda '/^(cuda|nvidia|triton)/,/[^\\]$$/d' locked/plain.txt locked/dev.txt  # of torch's other builds
	rm locked/*.cuda

demo: $(PLAIN)  ## compare nine methods on 50 clients; writes runs/digits/report.html
	$(BIN)/fedflat compare examples/digits.toml --out runs/digits --jobs auto

check: $(INSTALLED)  ## while you work, a minute and a half: without the tests that are marked slow
	$(CHECKS)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test: $(INSTALLED)  ## everything that can break, as CI does: about ten minutes on two cores
	$(CHECKS)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

test-all: $(INSTALLED)  ## every method on every axis, each file operation, thousands of mutations: some hours
	FEDFLAT_TEST_ALL=1 $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

trials: $(INSTALLED)  ## try again every way to lose something; writes docs/trials.json, in about an hour
	$(BIN)/python -m benchmarks.trials --out docs/trials.json

promises: $(INSTALLED)  ## try every promise and every row of the page of threats, and say which hold; half an hour
	$(BIN)/python -m benchmarks.promises --all

matrix: $(INSTALLED)  ## the fast tests with Python 3.11 to 3.13 and the oldest to the newest torch, federations with each Flower; writes docs/matrix.json
	$(BIN)/python -m benchmarks.matrix --out docs/matrix.json

# In environments of its own, made anew: nothing that is installed for work can stand in for what the wheel lacks.
release:  ## build dist/ and its list of contents, try the wheel, and say how the version is tagged; minutes
	rm -rf dist $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(TOOLS)/pip install --quiet --require-hashes --no-deps --requirement locked/release.txt
	$(TOOLS)/python -m build --no-isolation
	$(TOOLS)/twine check --strict dist/*
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > $(RELEASE)/pyproject.toml
	(grep '^torch==' constraints.txt; cat locked/plain.txt) | $(TOOLS)/cyclonedx-py requirements --mc-type library \
		--pyproject $(RELEASE)/pyproject.toml --output-reproducible --output-file $(RELEASE)/fedflat.cdx.json -
	$(MAKE) --no-print-directory try-wheel
	@ls -l dist $(RELEASE)/*.json
	@echo "git tag --annotate v$(VERSION) --message 'fedflat $(VERSION)' && git push origin v$(VERSION)"

try-wheel:  ## install the wheel of dist/ where nothing else is, with any PYTHON=..., and run doctor, the demo and an example
	rm -rf $(RELEASE)/empty
	$(PYTHON) -m venv $(RELEASE)/empty
	$(RELEASE)/empty/bin/pip install --quiet "$$(grep '^torch==' constraints.txt)" dist/*.whl
	cp -R examples $(RELEASE)/empty
	cd $(RELEASE)/empty && bin/fedflat doctor && bin/fedflat compare examples/digits.toml --out demo --jobs auto && \
		bin/python examples/own_data.py

accessibility: $(INSTALLED)  ## check pages of every kind with axe-core: two minutes; needs npm and Chromium
	$(BIN)/python -m benchmarks.accessibility

lint: $(INSTALLED)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)  ## static types
	$(BIN)/mypy

imports: $(INSTALLED)  ## imports run one way between rooms
	$(BIN)/lint-imports

docs: $(INSTALLED)  ## write the generated parts of README and docs, and the site in build/site: a minute or two
	$(BIN)/python -m docs.generate
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html -d build/doctrees docs build/site

docs-check: $(INSTALLED)  ## fail if a generated part is not current
	$(BIN)/python -m docs.generate --check

clean:  ## remove the environment and caches; results in runs/ stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
