# On a fresh machine `make train` runs the main job and `make test` passes the tests; both install what they need first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install train test test-all bench plan lint clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED)  ## make .venv and install everything into it; instant the second time

# torch goes in alone, at its exact version: where a CPU build of it is offered, nothing that follows replaces it.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet -c constraints.txt torch==2.13.0
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[test,recipes]'
	touch $@

train: $(INSTALLED)  ## train a GPT on 8 simulated devices; ARGS="--mesh data=2,fsdp=4" goes through
	$(RUN) recipes/train_gpt.py $(ARGS)

test: $(INSTALLED)  ## run the tests that a change must pass, also under the Shardy partitioner
	PYTHON=$(RUN) tests/run.sh $(ARGS)

test-all: $(INSTALLED)  ## run every test, under both partitioners; writes down when it passed
	PYTHON=$(RUN) tests/run.sh --all $(ARGS)

bench: $(INSTALLED)  ## time a training step against a hand-written JAX program
	$(RUN) recipes/benchmarks/step.py $(ARGS)

plan: $(INSTALLED)  ## plan the main job for a TPU slice, by the TPU's compiler; ARGS="--target v5p:2x2x2" goes through
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[recipes,tpu]'
	$(RUN) recipes/train_gpt.py --target v5e:2x4 $(ARGS)

lint: $(INSTALLED)  ## check style and types
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(RUN) -m ruff check .
	$(RUN) -m mypy

clean:  ## remove what was made here, .venv included
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache
