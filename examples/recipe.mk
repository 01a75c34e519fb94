# From text to a scored translation: the steps that the recipes share. A recipe's Makefile names its data (SOURCE, TARGET,
# TRAIN, VALID, TEST; FOLDER, URL) and the options of the four commands (PREPROCESS, TRAINING, AVERAGE, SEARCH, SCORES),
# then includes this file. What is done is not done again, and a training that was broken off goes on; a step whose
# command has changed is done anew, with all that follows from it. Only the text, once there, is not fetched again.
# Needs nmtkit on the PATH; the Makefile in the project's root sees to that.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

ENDING ?= .gz
WORK ?= work
RUN ?= $(WORK)# where several trainings share a dataset, each has a folder of its own
SIDES := $(foreach split,$(TRAIN) $(VALID) $(TEST),$(split).$(SOURCE)$(ENDING) $(split).$(TARGET)$(ENDING))
TEXT := $(SIDES:%=$(WORK)/text/%)

preprocess = nmt-preprocess -s $(SOURCE) -t $(TARGET) --destdir $(WORK)/data-bin $(TRAIN:%=--trainpref $(WORK)/text/%) \
	--validpref $(WORK)/text/$(VALID) --testpref $(WORK)/text/$(TEST) $(PREPROCESS)
train = nmt-train $(WORK)/data-bin --save-dir $(RUN)/checkpoints $(TRAINING)
average = nmt-average $(RUN)/checkpoints $(AVERAGE) --output $(RUN)/averaged.pt
generate = nmt-generate --checkpoint $(RUN)/averaged.pt --input $(WORK)/text/$(TEST).$(SOURCE)$(ENDING) \
	--output $(RUN)/translation.$(TARGET) $(SEARCH) --reference $(WORK)/text/$(TEST).$(TARGET)$(ENDING) $(SCORES)

.PHONY: always
ifdef SCORES
.PHONY: score
score: $(RUN)/scores.txt
	@$(if $(shown),true,cat $<)
endif

# What a rule writes gets its name when it is whole: a kill leaves a .part, which the next call writes anew.
ifneq ($(FOLDER)$(URL)$(HOW_TO_GET),)
$(WORK)/text/%:
	@mkdir -p $(@D)
ifneq ($(FOLDER),)
	cp -f "$(FOLDER)/$*" $@.part
else ifneq ($(URL),)
	curl -fsSL --retry 3 -o $@.part "$(URL)/$*"
else
	@echo "$*: $(HOW_TO_GET)" >&2; exit 1
endif
	@mv $@.part $@
endif

# The command that a step was last begun with: a new file only where it has changed.
%.command: always
	@mkdir -p $(@D)
	@echo '$($(*F))' | cmp -s - $@ || echo '$($(*F))' > $@

# What stands around the commands here (ON_…, LAUNCH) is about the machine: it changes no result, and repeats no step.
$(WORK)/data-bin/dataset.json: $(TEXT) $(WORK)/preprocess.command
	$(strip $(preprocess) $(ON_CORES))

# A new dataset or a changed command begins a new training, and what the one before has learned is laid aside. Without
# this, one that was broken off goes on.
$(RUN)/begun: $(WORK)/data-bin/dataset.json $(RUN)/train.command
	@if [ -e $(RUN)/checkpoints ]; then \
		aside=$$(mktemp -d $(RUN)/until-$$(date +%F)-XXX); mv $(RUN)/checkpoints $$aside; \
		echo "the training before, which had other options or another dataset, is kept in $$aside/checkpoints"; \
	fi
	touch $@

$(RUN)/trained: $(RUN)/begun
	$(strip $(LAUNCH) $(train) $(ON_DEVICE))
	@echo $(or $(DEVICES),1) > $@

$(RUN)/averaged.pt: $(RUN)/trained $(RUN)/average.command
	$(average)

# What makes the scores shows them as well, so that `score` need not.
$(RUN)/scores.txt: $(RUN)/averaged.pt $(RUN)/generate.command
	$(generate) 2>&1 | tee $@.part$(eval shown := yes)
	@mv $@.part $@
