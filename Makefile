# Every target installs what it needs into .venv by itself; a second run finds the stamp and starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: install demo test test-all kernels lint bench docs runner-wheels lock clean
.DEFAULT_GOAL := test

install: $(STAMP)

$(STAMP): requirements/dev.lock requirements/gpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "whitesmoke needs Python 3.11 or newer; point PYTHON at one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "cannot create $(VENV); on Debian or Ubuntu install the package python3-venv"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/gpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/whitesmoke demo --out out/demo

test: lint kernels
	$(BIN)/python -m pytest -n $(JOBS) -m "not exhaustive"

test-all: lint
	$(BIN)/python -m kernels build --arch sm80 sm89 sm90 sm100 sm120
	$(BIN)/python -m pytest -n $(JOBS)

# Every variant for one architecture; compiles nothing the second time.
kernels: $(STAMP)
	$(BIN)/python -m kernels build --arch sm90

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/whitesmoke bench review
	$(BIN)/whitesmoke bench pairs

docs: $(STAMP)
	$(BIN)/whitesmoke config schema > docs/policy.schema.json
	$(BIN)/whitesmoke config schema --of report > docs/report.schema.json

# What a GPU host installs the runner from, without an index (docs/gpu-runner.md).
runner-wheels: $(STAMP)
	$(BIN)/python packaging/runner/build.py dist/runner

# Needs uv (https://docs.astral.sh/uv/) on the PATH; only for whoever changes a dependency.
lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --extra dev pyproject.toml -o requirements/dev.lock
	cd packaging/runner && UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url -c ../../requirements/dev.lock pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
