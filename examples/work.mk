# The folder of all results, WORK. A Makefile with its own rules before recipe.mk includes this file first.
#
# Rules write to PART_OF_TARGET and rename it when it is complete, so a kill leaves no incomplete target. No two processes
# share that name, on any machine. Targets that are written in this way, or by nmtkit's commands, which do the same, are
# .PRECIOUS: after a signal, make would delete them. A dataset without its dataset.json could not even be made again.
WORK ?= work
PROCESS := $(shell uname -n)-$(shell echo $$PPID)
PART_OF_TARGET = $@.$(PROCESS).part
number_sign := \#
opening := (
closing := )
unusable := $(foreach character,: % = ; | $$ $(number_sign) ' " ` & < > ? * [ ] \ ! $(opening) $(closing),$(findstring $(character),$(WORK)))
ifneq ($(words $(WORK))$(strip $(unusable))$(filter -%,$(WORK)),1)
$(error WORK=$(WORK): use a folder whose name is not empty, has no spaces and no characters that are special to make or the shell, and does not begin with -)
endif

# Runs a command that prints a report, which becomes report.md if the command succeeds. MODULES are the folders whose
# modules it imports.
MODULES := ..
REPORT_PART = $(WORK)/report.md.$(PROCESS).part
print_report = @PYTHONPATH=$(MODULES)$${PYTHONPATH:+:$$PYTHONPATH} $(1) > $(REPORT_PART) || { rm -f $(REPORT_PART); exit 1; }; \
	mv $(REPORT_PART) $(WORK)/report.md; cat $(WORK)/report.md
