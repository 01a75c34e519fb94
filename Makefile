# Every target creates the environment that it needs in .venv. `make` without a target lists the targets.
# PYTHON=python3.12 make test   uses another Python.

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/installed-by-$(notdir $(PYTHON))
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# The recipes read their variables from the environment, to which make exports those of its command line. Clusters set a WORK
# of their own.
recipe = @$(VENV)/bin/python examples/$(1)
ifeq ($(origin WORK),environment)
unexport WORK
endif

.DEFAULT_GOAL := help
.PHONY: help usable install lint test test-all docs reference clean demo multi30k-en-de multi30k-bpe tanaka-en-ja multilingual parsing \
	wmt14-en-de wmt14-en-de-big wmt14-en-fr wmt14-en-fr-big table2 modern table3 positions backtranslation diversification distillation \
	new-language browser-student

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' Makefile

install: $(INSTALLED)  ## Create .venv with nmtkit and its development tools

# torch is installed first and in an exact version: with a range, pip may choose a newer build, gigabytes larger.
pip = $(VENV)/bin/python -m pip install --quiet -c constraints.txt
$(INSTALLED): setup.py constraints.txt $(wildcard nmtkit/native/*) | usable
	@$(PYTHON) -c "import sys, venv; sys.version_info < (3, 10) and sys.exit('Python 3.10 or newer is needed: give one as PYTHON=python3.11')"
	$(if $(filter-out $@,$(wildcard $(VENV)/installed-by-*)),rm -rf $(VENV))
	$(PYTHON) -m venv $(VENV)
	$(pip) torch==2.13.0
	$(pip) setuptools
	$(pip) --no-build-isolation -e '.[dev,docs,export,serve]'
	pwd -P > $@

# An environment runs the code of the folder in which it was made, and needs the Python that made it.
usable:
	@[ ! -s $(INSTALLED) ] || { [ "$$(cat $(INSTALLED))" = "$$(pwd -P)" ] && $(VENV)/bin/python -c "import click" 2> /dev/null; } || \
		{ echo "$(VENV) was made in another folder, or its Python is gone: remove it with rm -rf $(VENV), and call make again" >&2; exit 2; }

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
	python docs/_site/collect.py
	zensical build --strict
	@echo "built build/site: open build/site/index.html"

demo: $(INSTALLED)  ## Train on a built-in language pair and translate its unseen test set: about 3 minutes
	$(call recipe,demo.py)

multi30k-en-de: $(INSTALLED)  ## English to German on Multi30k, from raw text to BLEU (MULTI30K_DIR, or downloaded; UPDATES, SEEDS)
	$(call recipe,multi30k.py)

multi30k-bpe: $(INSTALLED)  ## The published Multi30k experiment on segmented text (MULTI30K_BPE_DIR)
	$(call recipe,multi30k_bpe.py)

tanaka-en-ja: $(INSTALLED)  ## English to Japanese on the Tanaka corpus (TANAKA_DIR)
	$(call recipe,tanaka.py)

multilingual: $(INSTALLED)  ## One model for four directions and one for each (MULTI30K_DIR, TANAKA_DIR, UPDATES, SEEDS)
	$(call recipe,multilingual.py)

new-language: $(INSTALLED)  ## Add a language to a multilingual model: LoRA, fine-tuning, a smaller vocabulary (MULTI30K_DIR, PAIRS, UPDATES)
	$(call recipe,new_language.py)

parsing: $(INSTALLED)  ## English constituency parsing, from trees to labelled F1 (TREEBANK_DIR; EXTRA, SIZE=paper)
	$(call recipe,parsing.py)

wmt14-en-de: $(INSTALLED)  ## The paper's base model, WMT 2014 English to German, from the download to BLEU (GPUS, DATA_DIR, SMOKE=1)
	$(call recipe,wmt14.py PAIR=en-de SIZE=base)

wmt14-en-de-big: $(INSTALLED)  ## The same with the big model
	$(call recipe,wmt14.py PAIR=en-de SIZE=big)

wmt14-en-fr: $(INSTALLED)  ## The base model, English to French
	$(call recipe,wmt14.py PAIR=en-fr SIZE=base)

wmt14-en-fr-big: $(INSTALLED)  ## The big model, English to French
	$(call recipe,wmt14.py PAIR=en-fr SIZE=big)

table2: $(INSTALLED)  ## The three kinds of model in the paper's Table 2, at equal size (MULTI30K_DIR, TANAKA_DIR, CORPORA, MODELS, SEEDS)
	$(call recipe,table2.py)

modern: $(INSTALLED)  ## The paper's Transformer, tuned, and later changes at equal cost (MULTI30K_DIR, TANAKA_DIR, CORPORA, UPDATES, SEEDS)
	$(call recipe,modern.py)

table3: $(INSTALLED)  ## The rows of the paper's Table 3, scaled down, compared with the paper (CORPUS, UPDATES, ROWS, SEEDS)
	$(call recipe,table3.py)

positions: $(INSTALLED)  ## Sinusoidal vs. learned positions on sentences longer than in training (CORPUS)
	$(call recipe,table3.py POSITIONS=1)

backtranslation: $(INSTALLED)  ## Monolingual text for training: a reverse model, tagged synthetic pairs (MULTI30K_DIR, TANAKA_DIR, CORPORA, SEEDS)
	$(call recipe,backtranslation.py)

diversification: $(INSTALLED)  ## A model that also learns from translations of its own training text (MULTI30K_BPE_DIR, SEEDS)
	$(call recipe,diversification.py)

distillation: $(INSTALLED)  ## A fast student that learns a teacher's translations (MULTI30K_DIR, TANAKA_DIR, CORPORA, SEEDS)
	$(call recipe,distillation.py)

browser-student: $(INSTALLED)  ## A student on a page that translates offline in the browser (MULTI30K_DIR, ENGINE_DIR, STUDENT, SEEDS)
	$(call recipe,browser_student.py)

reference: $(INSTALLED)  ## Write the generated parts of docs/reference: options of the commands, HTTP API, modules
	python docs/_site/reference.py

clean:  ## Remove the environment and all outputs of the recipes
	rm -rf $(VENV) build nmtkit/*.so examples/*/work *.egg-info .cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
