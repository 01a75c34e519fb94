# From text to a scored translation: the steps that the recipes share. A recipe's Makefile names its data (SOURCE, TARGET,
# TRAIN, VALID, TEST, FOLDER, URL) and the options of the four commands (PREPROCESS, TRAINING, AVERAGE, SEARCH, SCORES),
# then includes this file. Targets are files: what is done is not done again, and a training that was broken off goes on.
# Needs nmtkit on the PATH; the Makefile in the project's root sees to that.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

TEXT := $(foreach split,$(TRAIN) $(VALID) $(TEST),work/text/$(split).$(SOURCE).gz work/text/$(split).$(TARGET).gz)

.PHONY: score
score: work/scores.txt
	@cat $<

$(TEXT): work/text/%:
	@mkdir -p work/text
ifneq ($(FOLDER),)
	cp "$(FOLDER)/$*" $@
else ifneq ($(URL),)
	curl -fsSL --retry 3 -o $@ "$(URL)/$*"
else
	@echo "$*: $(HOW_TO_GET)" >&2; exit 1
endif

work/data-bin/dataset.json: $(TEXT)
	nmt-preprocess -s $(SOURCE) -t $(TARGET) --destdir work/data-bin --trainpref work/text/$(TRAIN) \
		--validpref work/text/$(VALID) --testpref work/text/$(TEST) $(PREPROCESS)

work/trained: work/data-bin/dataset.json
	nmt-train work/data-bin --save-dir work/checkpoints $(TRAINING)
	touch $@

work/averaged.pt: work/trained
	nmt-average work/checkpoints $(AVERAGE) --output $@

work/scores.txt: work/averaged.pt
	nmt-generate --checkpoint $< --input work/text/$(TEST).$(SOURCE).gz --output work/translation.$(TARGET) $(SEARCH) \
		--reference work/text/$(TEST).$(TARGET).gz $(SCORES) 2>&1 | tee $@
