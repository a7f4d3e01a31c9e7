# Everything runs in .venv, which the targets make and fill by themselves. It is filled anew only when
# pyproject.toml changes: the package is installed in place, so edits to the source count at once.

.PHONY: help demo test lint docs bench torture integration integration-slurm integration-sky integration-dstack clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# The first Python that is new enough; `make PYTHON=/path/to/python3.12 test` names another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input

# A venv whose Python has gone (an upgrade, a moved home) is no venv.
$(shell test -x $(BIN)/python || rm -rf $(VENV))

# One version of PyTorch, installed before anything that only asks for some version of it: a range lets pip
# choose a build with gigabytes of GPU libraries, which no test here needs.
TORCH := 2.13.0

DEMO := plan llama-3-8b --gpu h100-sxm --task train
GENERATED := README.md $(wildcard docs/*.md)
COG := $(BIN)/cog -I tools -U --verbosity=1
# What the shell that calls make has set up must not leak into the venv.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

help:
	@echo "make demo    the sheet of one plan, in a venv of its own"
	@echo "make test    the tests and the examples in the docstrings"
	@echo "make lint    style, types, layering, and that the documents are up to date"
	@echo "make docs    generate anew what the documents quote"
	@echo "make bench   how long the commands take, a save, a record of the log, and the odds"
	@echo "make torture kill training runs at random instants, KILLS=1000 times or for MINUTES=…, and report the counts"
	@echo "make integration  exported jobs: on a real Slurm (as root, ten minutes), read by SkyPilot and dstack (460 MB)"
	@echo "make clean   remove the venv and the caches"

# "Does not fit" is the right answer here, and its exit status is 1. A crash would exit with 1 as well,
# so the verdict is asked for too.
demo: $(VENV)/installed
	@$(BIN)/loadsheet $(DEMO) || test $$? -eq 1
	@$(BIN)/loadsheet $(DEMO) --json | $(BIN)/python -c 'import json, sys; \
		sys.exit(json.load(sys.stdin)["verdict"] != "does_not_fit" and "make demo: expected does_not_fit")'

# A process for each core: half of the tests start processes of their own and wait for them.
test: $(VENV)/installed-dev
	$(BIN)/pytest --numprocesses auto --maxprocesses 8 --dist worksteal

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(COG) --check --diff --check-fail-msg='The documents are out of date: run `make docs`.' $(GENERATED)

docs: $(VENV)/installed-dev
	$(COG) -r $(GENERATED)

# Installs torch; without it `python bench/bench.py` leaves that one row out.
bench: $(VENV)/installed-bench
	$(BIN)/python bench/bench.py
	$(BIN)/python bench/save.py
	$(BIN)/python bench/log.py
	$(BIN)/python bench/odds.py

KILLS := 1000
MINUTES := 1000000
torture: $(VENV)/installed-dev
	cd tests && ../$(BIN)/python -m torture --kills $(KILLS) --minutes $(MINUTES)

# What cannot be had here is said and left out; what runs must pass.
integration: integration-slurm integration-sky integration-dstack

integration-slurm: $(VENV)/installed-dev
	@test "$$(id -u)" -ne 0 || command -v slurmctld >/dev/null || test -x /usr/sbin/slurmctld || \
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-wlm munge || \
		echo "integration: Slurm cannot be installed here; left out" >&2
	$(BIN)/pytest -s -rs tests/integration/check_slurm.py

# Each in an environment of its own: what one of them wants of a library the other may not.
INTEGRATION := .venv-integration
integration-sky: INSTALL = skypilot
integration-dstack: INSTALL = dstack
integration-sky integration-dstack: integration-%: $(VENV)/pyvenv.cfg
	@test -x $(INTEGRATION)/$*/bin/python || $(BIN)/python -m venv $(INTEGRATION)/$*
	@if $(INTEGRATION)/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-input $(INSTALL) pyyaml --editable .; \
	then $(INTEGRATION)/$*/bin/python tests/integration/check_parsers.py $*; \
	else echo "integration: $(INSTALL) cannot be installed here; left out" >&2; fi

clean:
	rm -rf $(VENV) $(INTEGRATION) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; hint: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make a venv; hint: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/installed: pyproject.toml $(VENV)/pyvenv.cfg
	$(PIP_INSTALL) --editable .
	@touch $@

# Where that version cannot be had, any other will do.
$(VENV)/installed-torch-$(TORCH): $(VENV)/pyvenv.cfg
	$(PIP_INSTALL) 'torch==$(TORCH)' || $(PIP_INSTALL) torch
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/pyvenv.cfg $(VENV)/installed-torch-$(TORCH)
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-bench: pyproject.toml $(VENV)/pyvenv.cfg $(VENV)/installed-torch-$(TORCH)
	$(PIP_INSTALL) --editable '.[bench]'
	@touch $@ $(VENV)/installed
