# Everything runs in .venv, which the first target that needs it makes. Settings:
#   PYTHON  the interpreter that makes .venv (3.11 or newer)
#   TORCH   the version of torch that we test with; pip takes it from where pip is set up to look.
#           On Linux the usual file carries CUDA (several GB). For the small CPU build, set
#           PIP_EXTRA_INDEX_URL to PyTorch's CPU index and say TORCH=2.13.0+cpu.
PYTHON ?= python3
TORCH ?= 2.13.0

BIN := .venv/bin
STAMP := .venv/.installed-with-torch-$(TORCH)
# Two runs of make at once: the second waits here, then finds the work done.
LOCK := $(shell command -v flock >/dev/null 2>&1 && echo "flock .make.lock")

.DEFAULT_GOAL := demo
.PHONY: demo test test-slow lint clean distclean

demo: $(STAMP)  ## make a picture, ask about it, compare plain and speculative decoding
	@$(BIN)/varifocal demo

# A process per core, a thread each: most tests are too small to share their work out.
test: lint  ## what CI runs
	OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" \
	  --numprocesses auto --maxprocesses 4 --dist loadfile

test-slow: $(STAMP)  ## the long forms of the checks: every variant of every family, all sizes
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m slow

lint: $(STAMP)  ## style and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

clean:  ## remove what building and testing left; keeps .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .coverage htmlcov
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## remove .venv too
	rm -rf .venv .make.lock

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "varifocal needs Python 3.11 or newer; '$(PYTHON)' is" \
	    "$$($(PYTHON) --version 2>&1 | head -n 1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@[ -z "$(LOCK)" ] || flock -n .make.lock true || echo "Waiting for another make to install ..."
	@$(LOCK) sh -euc '\
	  if [ -e "$@" ] && [ "$@" -nt pyproject.toml ]; then exit 0; fi; \
	  echo "Installing varifocal into .venv (once; a few minutes, most of them for torch) ..."; \
	  $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv; \
	  $(BIN)/python -m pip install "torch==$(TORCH)"; \
	  $(BIN)/python -m pip install -e ".[dev]"; \
	  rm -f .venv/.installed-with-torch-*; \
	  touch "$@"'
