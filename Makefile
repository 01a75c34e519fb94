# Every target makes the environment it needs (.venv) by itself; `make` alone lists the targets.
# PYTHON=python3.12 make test   takes another Python for it.

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/installed-by-$(subst /,-,$(PYTHON))
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# A folder that was given, as the recipes see it from folders of their own; its name may have spaces.
absolute = "$(subst |, ,$(abspath $(subst $() ,|,$(1))))"

RECIPES := demo multi30k-en-de multi30k-bpe tanaka-en-ja parsing wmt14-en-de wmt14-en-de-big wmt14-en-fr wmt14-en-fr-big table3 positions

.DEFAULT_GOAL := help
.PHONY: help install lint test clean $(RECIPES)

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' Makefile

install: $(INSTALLED)  ## Make .venv with nmtkit and its development tools in it

# An environment that this rule has made with another Python gives way; one that somebody else has made does not.
# torch comes first and by its exact version: a range would let pip take a newer build, gigabytes larger.
$(INSTALLED): setup.py constraints.txt $(wildcard nmtkit/native/*)
	$(if $(filter-out $@,$(wildcard $(VENV)/installed-by-*)),rm -rf $(VENV))
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet -c constraints.txt torch==2.13.0
	$(VENV)/bin/pip install --quiet -c constraints.txt setuptools
	$(VENV)/bin/pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev,export,serve]'
	touch $@

lint: $(INSTALLED)  ## Check style (ruff) and types (mypy)
	ruff check
	ruff format --check
	mypy

test: lint  ## Check style and types, and run the whole test suite
	pytest -n auto --maxprocesses 8 --dist worksteal

demo: $(INSTALLED)  ## Train on a built-in language pair and translate its unseen test set: about 3 minutes
	@$(MAKE) --no-print-directory -C examples/demo

multi30k-en-de: $(INSTALLED)  ## English to German on Multi30k (MULTI30K_DIR, or downloaded), from raw text to BLEU
	@$(MAKE) --no-print-directory -C examples/multi30k MULTI30K_DIR=$(call absolute,$(MULTI30K_DIR))

multi30k-bpe: $(INSTALLED)  ## The published Multi30k experiment on segmented text (MULTI30K_BPE_DIR)
	@$(MAKE) --no-print-directory -C examples/multi30k-bpe MULTI30K_BPE_DIR=$(call absolute,$(MULTI30K_BPE_DIR))

tanaka-en-ja: $(INSTALLED)  ## English to Japanese on the Tanaka corpus (TANAKA_DIR)
	@$(MAKE) --no-print-directory -C examples/tanaka TANAKA_DIR=$(call absolute,$(TANAKA_DIR))

parsing: $(INSTALLED)  ## English constituency parsing, from trees to labelled F1 (TREEBANK_DIR; EXTRA, SIZE=paper)
	@$(MAKE) --no-print-directory -C examples/parsing TREEBANK_DIR=$(call absolute,$(TREEBANK_DIR)) EXTRA="$(abspath $(EXTRA))"

# Each takes GPUS, NODES, DATA_DIR, SMOKE=1 and all that examples/wmt14/README.md names.
wmt14 = +@$(MAKE) --no-print-directory -C examples/wmt14 DATA_DIR=$(call absolute,$(DATA_DIR))

wmt14-en-de: $(INSTALLED)  ## The paper's base model, WMT 2014 English to German, from the download to BLEU (GPUS, DATA_DIR, SMOKE=1)
	$(wmt14) PAIR=en-de SIZE=base

wmt14-en-de-big: $(INSTALLED)  ## The same with the big model
	$(wmt14) PAIR=en-de SIZE=big

wmt14-en-fr: $(INSTALLED)  ## The base model, English to French
	$(wmt14) PAIR=en-fr SIZE=base

wmt14-en-fr-big: $(INSTALLED)  ## The big model, English to French
	$(wmt14) PAIR=en-fr SIZE=big

table3: $(INSTALLED)  ## The rows of the paper's Table 3, scaled to the machine, beside the paper's (CORPUS, UPDATES, ROWS)
	@$(MAKE) --no-print-directory -C examples/table3 CORPUS=$(call absolute,$(CORPUS))

positions: $(INSTALLED)  ## Sinusoids against learned positions, on sentences longer than those of training (CORPUS)
	@$(MAKE) --no-print-directory -C examples/table3 positions CORPUS=$(call absolute,$(CORPUS))

clean:  ## Remove the environment and everything that the recipes have made
	rm -rf $(VENV) build nmtkit/*.so examples/*/work *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
