# Two commands matter: `make demo` and `make test`. Each makes .venv first if it is missing or out of date, and starts
# at once if it is not. They need Python 3.11 or newer, pip, and a C++ compiler for the backends that compile.
# Another interpreter: `make demo PYTHON=python3.13`. Where packages come from is up to pip's own settings.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
CONSTRAINTS := requirements/constraints.txt
SET_UP := $(VENV)/.set-up
DOCS_SET_UP := $(VENV)/.set-up-docs

# a new folder in plugins/ takes part without a line here
PLUGINS := $(sort $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml)))
SOURCES := $(addsuffix /src,$(PLUGINS)) native/src
BENCHMARKS := $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

# two processes, whole files each: what a file sets up once stays set up once. Alone: make test PARALLEL=
PARALLEL := -n 2 --dist loadfile

empty :=
space := $(empty) $(empty)

PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)
# every wheel is built with the pinned hatchling and setuptools of .venv, never with whatever is newest today; native/ is
# compiled against the torch of .venv, and left out where there is no compiler
EDITABLE := --no-build-isolation -e ".[dev]" -e native $(addprefix -e ,$(PLUGINS))

# models come out of packages; nothing may be looked for on a hub
export HF_HUB_OFFLINE := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help set-up demo examples test test-all test-abuse lint format bench docs clean distclean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

set-up: $(SET_UP) ## make .venv with everything pinned and the checkout editable (the others do it by themselves)

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Python 3.11 or newer is needed: make PYTHON=python3.13 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# torch goes first and alone, so that nothing else decides which build of it comes; then the build backend; then all of
# the checkout in one editable install, since pip 23 looks on the index for a core that it has not yet seen as a folder
$(SET_UP): pyproject.toml $(wildcard native/setup.py native/src/*/*.cpp) $(addsuffix /pyproject.toml,native $(PLUGINS)) $(CONSTRAINTS) | $(PY)
	$(PIP_INSTALL) "$$(grep '^torch==' $(CONSTRAINTS))"
	$(PIP_INSTALL) hatchling editables setuptools
	$(PIP_INSTALL) $(EDITABLE)
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null \
		|| echo 'No C++ compiler found: backends that compile will not take part, guards will not be compiled ($(PY) -m tt_core doctor).' >&2
	@touch $@

demo: $(SET_UP) ## tune a real model and prove that it got faster (at most 6 minutes on 2 cores)
	$(PY) examples/sentence_embeddings.py

examples: $(SET_UP) ## run the two small examples
	$(PY) examples/minimal.py
	$(PY) examples/auto_tune.py

test: $(SET_UP) ## everything but long, abuse and packaging (under 10 minutes on 2 cores)
	$(PY) -m pytest $(PARALLEL) -m "not long and not abuse and not packaging"

test-all: $(SET_UP) ## everything but abuse
	$(PY) -m pytest $(PARALLEL) -m "not abuse"

test-abuse: $(SET_UP) ## fuzz, faults, signals, soak
	$(PY) -m pytest -m abuse

lint: $(SET_UP) ## ruff and mypy strict
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	MYPYPATH=$(subst $(space),:,$(SOURCES)) $(PY) -m mypy tt_core $(SOURCES)

format: $(SET_UP) ## let ruff format, and fix what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(SET_UP) ## run every benchmark, one after the other
	@set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(PY) $$benchmark; done

$(DOCS_SET_UP): $(SET_UP)
	$(PIP_INSTALL) mkdocs
	@touch $@

# the configuration lies inside docs/, which MkDocs refuses when it is told the file's name
docs: $(DOCS_SET_UP) ## build the documentation into build/docs
	$(PY) -m mkdocs build --strict -f - < docs/mkdocs.yml

clean: ## remove what was built and cached
	rm -rf build native/build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find tt_core native plugins tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)
