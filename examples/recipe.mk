# From text to a scored translation: the steps that the recipes share. A recipe's Makefile names its data (SOURCE, TARGET,
# TRAIN, VALID, TEST; FOLDER, URL) and the options of the four commands (PREPROCESS, TRAINING, AVERAGE, SEARCH, SCORES),
# then includes this file. What is done is not done again, and a training that was broken off goes on; a step whose
# command has changed is done anew, with all that follows from it. Only the text, once there, is not fetched again.
# Needs nmtkit on the PATH; the Makefile in the project's root sees to that.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

ENDING ?= .gz
SIDES := $(foreach split,$(TRAIN) $(VALID) $(TEST),$(split).$(SOURCE)$(ENDING) $(split).$(TARGET)$(ENDING))
TEXT := $(SIDES:%=work/text/%)

preprocess = nmt-preprocess -s $(SOURCE) -t $(TARGET) --destdir work/data-bin --trainpref work/text/$(TRAIN) \
	--validpref work/text/$(VALID) --testpref work/text/$(TEST) $(PREPROCESS)
train = nmt-train work/data-bin --save-dir work/checkpoints $(TRAINING)
average = nmt-average work/checkpoints $(AVERAGE) --output work/averaged.pt
generate = nmt-generate --checkpoint work/averaged.pt --input work/text/$(TEST).$(SOURCE)$(ENDING) \
	--output work/translation.$(TARGET) $(SEARCH) --reference work/text/$(TEST).$(TARGET)$(ENDING) $(SCORES)

.PHONY: score always
score: work/scores.txt
	@cat $<

work/text/%:
	@mkdir -p work/text
ifneq ($(FOLDER),)
	cp "$(FOLDER)/$*" $@
else ifneq ($(URL),)
	curl -fsSL --retry 3 -o $@ "$(URL)/$*"
else
	@echo "$*: $(HOW_TO_GET)" >&2; exit 1
endif

# The command that a step was last begun with: a new file only where it has changed.
work/commands/%: always
	@mkdir -p work/commands
	@echo '$($*)' | cmp -s - $@ || echo '$($*)' > $@

work/data-bin/dataset.json: $(TEXT) work/commands/preprocess
	$(preprocess)

# A new dataset or a changed command begins a new training. Without this, one that was broken off goes on.
work/begun: work/data-bin/dataset.json work/commands/train
	rm -rf work/checkpoints
	touch $@

work/trained: work/begun
	$(train)
	touch $@

work/averaged.pt: work/trained work/commands/average
	$(average)

work/scores.txt: work/averaged.pt work/commands/generate
	$(generate) 2>&1 | tee $@
