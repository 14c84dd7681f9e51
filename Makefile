# On a fresh machine `make train` runs the main job and `make test` passes the tests; both install what they need first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
GPU_PLAN := .venv-gpu-plan
OLD := oldest

.DEFAULT_GOAL := help
.PHONY: help install train test test-sample test-all test-newest smoke-newest test-oldest smoke-oldest bench bench-all gpu plan plan-all plan-gpu site lint release clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED)  ## make .venv and install everything into it, ruff and mypy, too; instant the second time

# torch goes in alone, at its exact version: where a CPU build of it is offered, nothing that follows replaces it.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet -c constraints.txt torch==2.13.0
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

train: $(INSTALLED)  ## train a GPT on 8 simulated devices; ARGS="--mesh data=2,fsdp=4" goes through
	$(RUN) recipes/train_gpt.py $(ARGS)

test: $(INSTALLED)  ## run the tests that a change must pass, also under the Shardy partitioner
	PYTHON=$(RUN) tests/run.sh $(ARGS)

test-sample: $(INSTALLED)  ## run a tenth of what make test leaves out, by the commit, and half as many under Shardy
	PYTHON=$(RUN) tests/run.sh --sample $(ARGS)

test-all: $(INSTALLED)  ## run every test, under both partitioners; goes on where it was stopped, and writes down what passed
	PYTHON=$(RUN) tests/run.sh --all $(ARGS)

# An environment that tests/versions.txt names, in .venv-NAME.
.venv-%/.installed: pyproject.toml tests/versions.txt tests/environment.sh
	tests/environment.sh $* .venv-$*
	touch $@

test-newest: .venv-newest/.installed  ## run core, library and packages, plans for TPUs among them, on the newest Python, torch, jax and libtpu; ARGS=--all: every test of these
	PYTHON=.venv-newest/bin/python TEST_GROUPS="core:1of2 core:2of2 packages library core+packages+library@shardy" \
		tests/run.sh $(ARGS)

smoke-newest: .venv-newest/.installed  ## its short form: tour, main job, plans for TPUs, two processes
	PYTHON=.venv-newest/bin/python tests/smoke.sh

test-oldest: .venv-$(OLD)/.installed  ## run the tests of frameworks on the oldest versions; OLD=transformers-4.57: on others of tests/versions.txt
	PYTHON=.venv-$(OLD)/bin/python TEST_GROUPS=frameworks tests/run.sh $(ARGS)

smoke-oldest: .venv-$(OLD)/.installed  ## the short form of all tests on the oldest versions, or on those of OLD
	PYTHON=.venv-$(OLD)/bin/python tests/smoke.sh

bench: $(INSTALLED)  ## time a training step against a hand-written JAX program
	$(RUN) recipes/benchmarks/step.py $(ARGS)

bench-all: $(INSTALLED)  ## run every comparison of docs/benchmarks.md, keep its figures, write the page (half an hour); ARGS="step generate", ARGS=--list
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[recipes,tpu]'
	$(RUN) -W ignore -m recipes.benchmarks.bench_all $(ARGS)

# With the machine's own torch and jax: make gpu INSTALLED= RUN=python3
gpu: $(INSTALLED)  ## right values and the race on this machine's GPU, eight minutes; ARGS=--dry-run: all of it on the CPU
	PYTHONPATH=. $(RUN) -m recipes.benchmarks.race $(ARGS)

plan: $(INSTALLED)  ## plan the main job for a TPU slice, by the TPU's compiler; ARGS="--target v5p:2x2x2" goes through
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[recipes,tpu]'
	$(RUN) recipes/train_gpt.py --target v5e:2x4 $(ARGS)

plan-all: $(INSTALLED)  ## plan each file of recipes/configs for its chips, by their compiler (an hour)
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[recipes,tpu]'
	for config in recipes/configs/*.toml; do echo $$config; $(RUN) recipes/pretrain.py $$config --plan || exit 1; done

# An environment of its own, as CUDA's plugin says in each process that there is no driver. It reads .venv's packages.
plan-gpu: $(INSTALLED)  ## plan the main job for eight H100s, by the GPU's compiler, without a GPU; then its tests
	test -x $(GPU_PLAN)/bin/python || $(PYTHON) -m venv $(GPU_PLAN)
	$(RUN) -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" \
		> "$$($(GPU_PLAN)/bin/python -c 'import site; print(site.getsitepackages()[0])')/packages.pth"
	$(GPU_PLAN)/bin/python -m pip install --quiet -c constraints.txt jax-cuda12-plugin
	$(GPU_PLAN)/bin/python recipes/train_gpt.py --target h100:8 $(ARGS)
	$(GPU_PLAN)/bin/python -m pytest -q tests/tools/planning/test_gpu_targets.py
	$(GPU_PLAN)/bin/python docs/site/notebooks.py --check plan

site: $(INSTALLED)  ## build the documentation site into out/site; a link or name that is not there fails
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

lint: $(INSTALLED)  ## check style, types, that no test was lost, and the files that GitHub and others read
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports
	$(RUN) tests/baseline/check.py
	$(RUN) -m mypy --strict --follow-imports=silent tests/docs/all_public_names.py
	$(RUN) -m yamllint --strict .github .pre-commit-config.yaml CITATION.cff mkdocs.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/fault.yml .github/ISSUE_TEMPLATE/wish.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

# Alone in an environment with torch and jax, from a folder outside of this one.
release: $(INSTALLED)  ## build the wheel and the sdist into dist, and try the wheel where nothing else is
	rm -rf dist .venv-release
	$(RUN) -m pip install --quiet -c constraints.txt build
	$(RUN) -m build --outdir dist .
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0
	.venv-release/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	PYTHON=.venv-release/bin/python tests/wheel.sh

clean:  ## remove what was made here, .venv included
	rm -rf $(VENV) .venv-* out build dist *.egg-info .pytest_cache
