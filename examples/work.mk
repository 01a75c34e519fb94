# The folder of all results, WORK. A Makefile with its own rules before recipe.mk includes this file first.
#
# Rules write to PART_OF_TARGET and rename it when it is complete, so a kill leaves no incomplete target. No two processes
# share that name, on any machine. make deletes a target after a signal, unless it is .PRECIOUS. Complete files, also of
# nmtkit's commands, are kept that way. A dataset that lost its dataset.json could not be made again.
#
# In the environment these names are ignored: job scripts set such names there, to folders of the user.
NOT_OF_THE_ENVIRONMENT := WORK RUN DATASET DATASETS TRAINPREFS MADE TRANSLATED FOLDER URL HOW_TO_GET ENDING VALID TEST TITLE \
	CORPUS DIRECTION ALL ROW MODEL SEARCH LAUNCH DEVICES ON_SEVERAL_MACHINES UNLESS_IN_USE
$(foreach name,$(NOT_OF_THE_ENVIRONMENT),$(if $(filter environment,$(origin $(name))),$(eval undefine $(name))))
WORK ?= work
PROCESS := $(shell uname -n)-$(shell echo $$PPID)
PART_OF_TARGET = $@.$(PROCESS).part

# What follows a command that prints a file: the file is replaced if the command succeeds.
into = > $(PART_OF_TARGET) || { rm -f $(PART_OF_TARGET); exit 1; }; mv $(PART_OF_TARGET) $(1)

number_sign := \#
opening := (
closing := )
unusable := $(foreach character,: % = ; | $$ $(number_sign) ' " ` & < > ? * [ ] { } \ ! $(opening) $(closing),$(findstring $(character),$(WORK)))
ifneq ($(words $(WORK))$(strip $(unusable))$(filter -% ~%,$(WORK)),1)
$(error WORK=$(WORK): use a folder whose name is not empty, has no spaces and no characters that are special to make or the shell, and does not begin with - or ~)
endif

# Runs a command that prints a report, which becomes report.md if the command succeeds. MODULES are the folders whose
# modules it imports.
MODULES := ..
REPORT_PART = $(WORK)/report.md.$(PROCESS).part
print_report = @PYTHONPATH=$(MODULES)$${PYTHONPATH:+:$$PYTHONPATH} $(1) > $(REPORT_PART) || { rm -f $(REPORT_PART); exit 1; }; \
	mv $(REPORT_PART) $(WORK)/report.md; cat $(WORK)/report.md
