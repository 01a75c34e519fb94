# Every target creates the environment that it needs in .venv. `make` without a target lists the targets.
# PYTHON=python3.12 make test   uses another Python.

override PYTHON := $(or $(strip $(PYTHON)),python3)
ifneq ($(words $(PYTHON)),1)
$(error PYTHON=$(PYTHON): give one program, without options, whose name has no spaces)
endif
VENV := .venv
BY := by-$(subst /,-,$(PYTHON))
BEGUN := $(VENV)/begun-$(BY)
INSTALLED := $(VENV)/installed-$(BY)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# The absolute path of the folder that a variable names, because recipes run in their own folders. The name may have spaces and
# quotes. From the environment it is taken as it is: make would expand $.
given = $(if $(findstring environment,$(origin $(1))),$(value $(1)),$($(1)))
absolute = '$(subst ','\'',$(subst $$,$$$$,$(subst <space>, ,$(abspath $(subst $() ,<space>,$(call given,$(1)))))))'

# The same for a list of files; in a folder whose name has spaces, make knows only relative names.
files = $(if $(word 2,$(CURDIR)),$(foreach file,$(1),$(if $(filter /%,$(file)),$(file),../../$(file))),$(abspath $(1)))

RECIPES := demo multi30k-en-de multi30k-bpe tanaka-en-ja parsing wmt14-en-de wmt14-en-de-big wmt14-en-fr wmt14-en-fr-big table2 table3 positions \
	backtranslation distillation diversification multilingual

.DEFAULT_GOAL := help
.PHONY: help install lint test test-all docs clean $(RECIPES)

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' Makefile

install: $(INSTALLED)  ## Create .venv with nmtkit and its development tools

# An environment of this rule with another Python is replaced, even if it was not completed; any other environment is kept.
# That of a checkout that was moved or copied runs the code at its old place, which is in the file of its beginning. An
# upgrade of the system can replace the Python of an environment by one that does not find its packages.
# torch is installed first and in an exact version: with a range, pip may choose a newer build, gigabytes larger.
UNUSABLE := $(shell [ ! -s "$(BEGUN)" ] || [ "$$(cat "$(BEGUN)")" = "$$(pwd -P)" ] || echo elsewhere; \
	[ ! -e "$(INSTALLED)" ] || $(VENV)/bin/python -c "import click" 2> /dev/null || echo no-python)
.PHONY: elsewhere no-python
advice := remove it with rm -rf $(VENV), and call make again
refuse_elsewhere = echo "$(VENV) runs the code in $$(cat "$(BEGUN)"): $(advice)" >&2; exit 2
refuse_no-python = echo "the Python of $(VENV) is gone, or another version: $(advice)" >&2; exit 2
comma := ,
oldest = $(subst .,$(comma),$(shell grep -o 'python_requires=">=[0-9.]*' setup.py | grep -o '[0-9.]*$$'))
pip = $(VENV)/bin/python -m pip install --quiet -c constraints.txt
$(INSTALLED): setup.py constraints.txt $(wildcard nmtkit/native/*) $(UNUSABLE)
	@$(refuse_$(firstword $(UNUSABLE)))
	@$(PYTHON) -c "import sys; sys.version_info >= ($(oldest)) or sys.exit('$(PYTHON) is Python %d.%d, which is too old: give another as PYTHON=python3.11' % sys.version_info[:2]); import venv"
	$(if $(filter-out %-$(BY),$(wildcard $(VENV)/begun-by-* $(VENV)/installed-by-*)),rm -rf $(VENV))
	[ -e $(VENV) ] || { mkdir $(VENV); pwd -P > $(BEGUN); }
	$(PYTHON) -m venv $(VENV)
	$(pip) torch==2.13.0
	$(pip) setuptools
	$(pip) --no-build-isolation -e '.[dev,docs,export,serve]'
	touch $@

lint: $(INSTALLED)  ## Check style (ruff) and types (mypy)
	ruff check
	ruff format --check
	mypy

PYTEST := pytest -n auto --maxprocesses 8 --dist worksteal

test: lint  ## Check style and types, and run the tests, except for the slow ones
	$(PYTEST) -m "not slow"

test-all: lint  ## The same with the slow tests: recipes, all commands of the docs, the search on an emulated aarch64
	$(PYTEST)

docs: $(INSTALLED)  ## Build the documentation site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "built build/site: open build/site/index.html"

demo: $(INSTALLED)  ## Train on a built-in language pair and translate its unseen test set: about 3 minutes
	@$(MAKE) --no-print-directory -C examples/demo

multi30k-en-de: $(INSTALLED)  ## English to German on Multi30k (MULTI30K_DIR, or downloaded), from raw text to BLEU
	@$(MAKE) --no-print-directory -C examples/multi30k MULTI30K_DIR=$(call absolute,MULTI30K_DIR)

multi30k-bpe: $(INSTALLED)  ## The published Multi30k experiment on segmented text (MULTI30K_BPE_DIR)
	@$(MAKE) --no-print-directory -C examples/multi30k-bpe MULTI30K_BPE_DIR=$(call absolute,MULTI30K_BPE_DIR)

tanaka-en-ja: $(INSTALLED)  ## English to Japanese on the Tanaka corpus (TANAKA_DIR)
	@$(MAKE) --no-print-directory -C examples/tanaka TANAKA_DIR=$(call absolute,TANAKA_DIR)

multilingual: $(INSTALLED)  ## One model for four directions beside one for each (MULTI30K_DIR, TANAKA_DIR, UPDATES, SEEDS)
	@$(MAKE) --no-print-directory -C examples/multilingual $(both_corpora)

parsing: $(INSTALLED)  ## English constituency parsing, from trees to labelled F1 (TREEBANK_DIR; EXTRA, SIZE=paper)
	@$(MAKE) --no-print-directory -C examples/parsing TREEBANK_DIR=$(call absolute,TREEBANK_DIR) EXTRA="$(call files,$(EXTRA))"

# Each accepts GPUS, NODES, DATA_DIR, SMOKE=1 and the other variables in examples/wmt14/README.md.
wmt14 = +@$(MAKE) --no-print-directory -C examples/wmt14 DATA_DIR=$(call absolute,DATA_DIR)

wmt14-en-de: $(INSTALLED)  ## The paper's base model, WMT 2014 English to German, from the download to BLEU (GPUS, DATA_DIR, SMOKE=1)
	$(wmt14) PAIR=en-de SIZE=base

wmt14-en-de-big: $(INSTALLED)  ## The same with the big model
	$(wmt14) PAIR=en-de SIZE=big

wmt14-en-fr: $(INSTALLED)  ## The base model, English to French
	$(wmt14) PAIR=en-fr SIZE=base

wmt14-en-fr-big: $(INSTALLED)  ## The big model, English to French
	$(wmt14) PAIR=en-fr SIZE=big

# Recipes that train on two corpora.
both_corpora = MULTI30K_DIR=$(call absolute,MULTI30K_DIR) TANAKA_DIR=$(call absolute,TANAKA_DIR)

table2: $(INSTALLED)  ## The three kinds of model in the paper's Table 2, at equal size (MULTI30K_DIR, TANAKA_DIR, CORPORA, MODELS, SEEDS)
	@$(MAKE) --no-print-directory -C examples/table2 $(both_corpora)

table3: $(INSTALLED)  ## The rows of the paper's Table 3, scaled down, compared with the paper (CORPUS, UPDATES, ROWS, SEEDS)
	@$(MAKE) --no-print-directory -C examples/table3 CORPUS=$(call absolute,CORPUS)

positions: $(INSTALLED)  ## Sinusoidal vs. learned positions on sentences longer than in training (CORPUS)
	@$(MAKE) --no-print-directory -C examples/table3 positions CORPUS=$(call absolute,CORPUS)

backtranslation: $(INSTALLED)  ## Monolingual text for training: a reverse model, tagged synthetic pairs (MULTI30K_DIR, TANAKA_DIR, CORPORA, SEEDS)
	@$(MAKE) --no-print-directory -C examples/backtranslation $(both_corpora)

diversification: $(INSTALLED)  ## A model that also learns from translations of its own training text (MULTI30K_BPE_DIR, SEEDS)
	@$(MAKE) --no-print-directory -C examples/diversification MULTI30K_BPE_DIR=$(call absolute,MULTI30K_BPE_DIR)

distillation: $(INSTALLED)  ## A fast student that learns a teacher's translations (MULTI30K_DIR, TANAKA_DIR, CORPORA, SEEDS)
	@$(MAKE) --no-print-directory -C examples/distillation $(both_corpora)

clean:  ## Remove the environment and all outputs of the recipes
	rm -rf $(VENV) build nmtkit/*.so examples/*/work *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
