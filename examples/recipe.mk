# The shared steps of the recipes, from text to a scored translation. A recipe's Makefile defines its data (SOURCE, TARGET,
# TRAIN, VALID, TEST; FOLDER, URL) and the options of the four commands (PREPROCESS, TRAINING, AVERAGE, SEARCH, SCORES),
# then includes this file. Finished steps are not repeated, and an interrupted training is resumed. A step whose command
# has changed is repeated with all steps that depend on it. The text is fetched once; that of another FOLDER or URL replaces it.
# A recipe with a TITLE ends in a report. One with SEEDS has a training for each, in its RUN, which is $(WORK)/seed-$(SEED).
# nmtkit must be on the PATH; the Makefile in the project's root takes care of that.

include ../work.mk
ENDING ?= .gz
RUN ?= $(WORK)# trainings that share a dataset set their own folders
DATASET ?= $(WORK)/data-bin
DATASETS ?= $(DATASET)# of a training; the first is made here
TEXT_FOLDER ?= $(WORK)/text# the folder of the text that the commands read
TRAINPREFS ?= $(TRAIN:%=$(TEXT_FOLDER)/%)# and MADE: training text that the recipe itself makes
RUNS = $(or $(SEEDS:%=$(WORK)/seed-%),$(RUN))
SIDES := $(foreach split,$(TRAIN) $(VALID) $(TEST),$(split).$(SOURCE)$(ENDING) $(split).$(TARGET)$(ENDING))
TEXT := $(SIDES:%=$(WORK)/text/%)

preprocess = nmt-preprocess -s $(SOURCE) -t $(TARGET) --destdir $(DATASET) $(TRAINPREFS:%=--trainpref %) \
	--validpref $(TEXT_FOLDER)/$(VALID) --testpref $(TEXT_FOLDER)/$(TEST) $(PREPROCESS)
train = nmt-train $(DATASETS) --save-dir $(RUN)/checkpoints $(TRAINING)
# Checkpoints that the training keeps: AVERAGED, or as many as the one that has begun, so that fewer are averaged without another.
KEPT = $(shell kept=$$(grep -o -e '--keep-last [0-9]*' $(RUN)/begun 2> /dev/null | grep -o '[0-9]*$$' || true); \
	[ "$$kept" -gt $(AVERAGED) ] 2> /dev/null && echo $$kept || echo $(call quoted,$(AVERAGED)))
average = nmt-average $(RUN)/checkpoints $(AVERAGE) --output $(RUN)/averaged.pt
generate = nmt-generate --checkpoint $(RUN)/averaged.pt --input $(TEXT_FOLDER)/$(TEST).$(SOURCE)$(ENDING) \
	--output $(RUN)/translation.$(TARGET) $(SEARCH) --reference $(TEXT_FOLDER)/$(TEST).$(TARGET)$(ENDING) $(SCORES)

report = python ../report.py $(RUNS) --title "$(TITLE)" --source $(TEXT_FOLDER)/$(TEST).$(SOURCE)$(ENDING) \
	--reference $(TEXT_FOLDER)/$(TEST).$(TARGET)$(ENDING) --target-lang $(TARGET) $(SCORES) --output $(WORK)/report.html

.PRECIOUS: $(DATASET)/dataset.json $(RUN)/begun $(RUN)/averaged.pt $(RUN)/scores.txt $(RUNS:%=%/scores.txt)

.NOTPARALLEL:# trainings share datasets, and datasets share text
.PHONY: always
ifdef TITLE
.PHONY: report
report: $(if $(SEEDS),,score) $(WORK)/report.html $(WORK)/summary.txt
	@cat $(WORK)/summary.txt
	@$(call print_place,$(WORK)/report.html)

# A pattern: one call writes both files, and either of them that is missing or old repeats it.
%/report.html %/summary.txt: $(RUNS:%=%/scores.txt) %/report.command
	@$(call run,$(report)) $(call into,$(WORK)/summary.txt)

$(filter-out $(RUN)/scores.txt,$(SEEDS:%=$(WORK)/seed-%/scores.txt)): $(WORK)/seed-%/scores.txt: always
	@$(MAKE) --no-print-directory SEED=$* score
endif

ifdef SCORES
.PHONY: score
score: $(RUN)/scores.txt
	@$(if $(shown),true,cat $<)
endif

ifneq ($(FOLDER)$(URL)$(HOW_TO_GET),)
fetch = python ../fetch_text.py $(WORK)/text $(sort $(SIDES)) \
	$(if $(FOLDER),--folder $(call quoted,$(FOLDER)),$(if $(URL),--url "$(URL)",--how-to-get "$(HOW_TO_GET)"))
TEXT_MADE_BY := $(WORK)/fetch.command
.PHONY: fetched
fetched: $(TEXT_MADE_BY)
	@$(LOCKED) -- $(fetch)
$(sort $(TEXT)): fetched
	@:
endif

# The last command of a step. A changed command replaces it, unless the step runs, another make uses it, or UNLESS_IN_USE is
# in use. make must not delete the file, because its locks would be lost. The folder of all results is called WORK there, so
# that it can be moved.
command_of = $(call quoted,$(subst $(space)$(RESULTS)/,$(space)WORK/,$($(basename $(notdir $(1))))))
.PRECIOUS: %.command
%.command: always
	@mkdir -p $(@D)
	@python ../locked.py --record $@ $(call command_of,$@) $(FIRST_MAKE) $(UNLESS_IN_USE)
$(RUN)/train.command: UNLESS_IN_USE = $(RUN)/checkpoints
$(dir $(DATASET))preprocess.command: UNLESS_IN_USE = $(DATASET)/dataset.json

# Prints a command, and runs it while no make can replace the text, the COMMANDS of the step or the files that it READS; it
# replaces no file that another step reads. If a make has replaced the text or a command, the step is refused. TEXT_MADE_BY has
# the commands that make the text. FETCHED_ELSEWHERE has the fetch.command of other folders whose text is used: they must
# stay as they were before the first step.
run = $(info $(strip $(1)))$(LOCKED) -- $(strip $(1))
COMMANDS = $(filter %.command,$^)
READS = $(filter-out %.command,$^)
REPLACED = $@
first_content = $(if $(content-$(1)),,$(eval content-$(1) := $$(shell cat $(1))))$(content-$(1))
LOCKED = python ../locked.py $(foreach file,$(FETCHED_ELSEWHERE),--made-by $(file) $(call quoted,$(call first_content,$(file)))) \
	$(foreach file,$(sort $(TEXT_MADE_BY) $(COMMANDS)),--made-by $(file) $(call command_of,$(file))) $(READS:%=--read %) $(REPLACED)
# The same for a command that prints its target, which is written under the locks; run_and_show also shows what it prints.
# If another make has made the same file meanwhile, that one is kept: a newer one would repeat all steps that need it.
run_into = $(info $(strip $(1)))$(LOCKED) -- bash -o pipefail -c $(call quoted,$(strip $(1)) > $(call part_of,$@) $(call or_removes,$@); $(unless_made))
unless_made = if cmp -s $(call part_of,$@) $@ && [ ! "$$(find $(filter-out always,$^) -newer $@)" ]; \
	then rm $(call part_of,$@); else mv -f $(call part_of,$@) $@; fi
# For a command that writes several targets: nothing runs if another make has made them meanwhile. A missing file has no lock.
unless_another_makes = --if-needed $(1) $(firstword $(1)).lock
run_and_show = $(info $(strip $(1)))$(LOCKED) -- bash -o pipefail -c $(call quoted,$(strip $(1)) 2>&1 | tee $(call part_of,$@) $(call completes,$@))

# The files that a dataset has lost, of those that its dataset.json lists with their bytes.
lost_from = $(shell CDPATH= cd $(1) 2> /dev/null && grep -sB 1 '"bytes":' dataset.json | sed -n 's/^ *"\(.*\)": {$$/\1/p' | \
	while read -r name; do [ -e "$$name" ] || echo "$$name"; done)
# Such a dataset is made again.
made_again_if_incomplete = $(if $(call lost_from,$(1)),$(eval $(1)/dataset.json: always))
$(call made_again_if_incomplete,$(DATASET))

# Settings of the machine (ON_…, LAUNCH) change a result at most by rounding, so they repeat no step.
$(DATASET)/dataset.json: private REPLACED = $(if $(filter always,$^),,--in-turn $(DATASET).lock --if-needed) $@
$(DATASET)/dataset.json: $(SIDES:%=$(TEXT_FOLDER)/%) $(MADE) $(dir $(DATASET))preprocess.command
	@$(call run,$(preprocess) $(ON_CORES))

# Checks on a machine that shares the work folder that another one has prepared a step: $(1) contains its command, and
# $(2) is not older than $(1) and the files $(3).
check_ready = ready=$$(echo $(call command_of,$(1)) | cmp -s - $(1) && echo yes || true); \
	for file in $(1) $(2) $(3); do [ -e $$file ] && [ ! $$file -nt $(2) ] || ready=; done; \
	[ $$ready ] || { echo "first run make ready on one machine, with the same variables except $(4): see README.md" >&2; exit 1; }

ifdef ON_SEVERAL_MACHINES
# All machines run this at the same time, so it only trains.
.PHONY: is-ready
$(RUN)/begun: | is-ready
is-ready:
	@$(call check_ready,$(RUN)/train.command,$(RUN)/begun,$(DATASETS:%=%/dataset.json),$(ON_SEVERAL_MACHINES))
$(RUN)/trained: $(RUN)/begun
$(RUN)/trained: private COMMANDS = $(RUN)/train.command
else
# Another dataset or command starts a new training and moves the old checkpoints away, unless a training runs in them, its
# checkpoints are being averaged, or another make has trained since. Otherwise the training is resumed: `begun` contains its command
# and the checksum of its datasets, so it also goes on if they have been replaced, and are as before again. So does a training that
# was moved away, for example by a mistyped option, which nmt-train refuses.
$(RUN)/begun: private REPLACED = --if-needed $@ $(RUN)/trained $(RUN)/checkpoints
$(RUN)/begun: $(DATASETS:%=%/dataset.json) $(RUN)/train.command
	@$(LOCKED) -- bash -euc $(call quoted,$(begin))
command_and_datasets = { cat $(RUN)/train.command; cat $(filter-out %.command,$^) | cksum; }
is_of = $(command_and_datasets) | cmp -s - $(1)
begin = if ! $(call is_of,$(RUN)/begun); then $(move_away); fi; $(take_up_again); $(command_and_datasets) > $(RUN)/begun
move_away = if [ -e $(RUN)/checkpoints ]; then \
		aside=$$(mktemp -d $(RUN)/until-$$(date +%F)-XXX); \
		cp $(RUN)/begun $$aside 2> /dev/null || true; \
		mv $(RUN)/checkpoints $$aside || { rm -r $$aside; exit 1; }; \
		echo "the training before, which had other options or another dataset, is kept in $$aside/checkpoints"; \
	fi
take_up_again = for begun in $(RUN)/until-*/begun; do \
		kept=$${begun%/begun}; \
		if [ ! -e $(RUN)/checkpoints ] && [ -e $$kept/checkpoints ] && $(call is_of,$$begun); then \
			mv $$kept/checkpoints $(RUN)/checkpoints; rm $$begun; rmdir $$kept 2> /dev/null || true; \
			echo "the training that was kept in $$kept goes on"; \
		fi; \
	done
$(RUN)/trained: $(RUN)/begun $(RUN)/train.command
endif

$(RUN)/trained: private REPLACED =# several machines write it
$(RUN)/trained: private READS = $(RUN)/begun $(DATASETS:%=%/dataset.json)# a resumed training needs the dataset that it began with
$(RUN)/trained:
	@$(call run,$(LAUNCH) $(train) $(ON_DEVICE))
	@$(LOCKED) -- touch $@

$(RUN)/averaged.pt: $(RUN)/trained $(RUN)/average.command
	@[ -e $(RUN)/checkpoints ] || { echo "$(RUN)/checkpoints is missing: remove $(RUN)/trained, and call make to train again" >&2; exit 1; }
	@$(call run,$(average))

# The rule that computes the scores also prints them, so `score` does not print them again.
$(RUN)/scores.txt: $(RUN)/averaged.pt $(RUN)/generate.command $(if $(wildcard $(RUN)/translation.$(TARGET)),,always)
	@$(call run_and_show,$(generate))$(eval shown := yes)
