# The corpora of recipes that use more than one: CORPUS is multi30k or tanaka. A recipe includes this file before recipe.mk,
# and in the make for all CORPORA, where `texts` fetches the text of each: a missing one stops before the first training.
#
#   MULTI30K_DIR=folder   train, val and test_2016_flickr, each .en.gz and .de.gz; by default downloaded
#   TANAKA_DIR=folder     train, dev and test, each .en.gz and .ja.gz

ifndef CORPUS
.PHONY: texts $(CORPORA:%=%-text)
texts: $(CORPORA:%=%-text)
$(CORPORA:%=%-text): %-text:
	@$(MAKE) --no-print-directory CORPUS=$* WORK=$(WORK)/$* fetched
else

VOCAB_SIZE ?= 6000
SOURCE := en
TRAIN := train

ifeq ($(CORPUS),multi30k)
FOLDER = $(call given,MULTI30K_DIR)
URL := https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw
TARGET := de
VALID := val
TEST := test_2016_flickr
PREPROCESS = --vocab-size $(VOCAB_SIZE) --character-coverage 1
else ifeq ($(CORPUS),tanaka)
FOLDER = $(call given,TANAKA_DIR)
HOW_TO_GET := set TANAKA_DIR to the folder of the corpus, see ../tanaka/README.md
TARGET := ja
VALID := dev
TEST := test
PREPROCESS = --vocab-size $(VOCAB_SIZE) --separate-vocab
else
$(error no corpus $(CORPUS): use multi30k or tanaka)
endif

endif
