# The folder of all results, WORK. A Makefile with its own rules before recipe.mk includes this file first.
#
# Rules write to a part of a file and rename it when it is complete, so a kill leaves no incomplete file. No two processes
# share the name of a part, on any machine. After a signal, make deletes the target of a rule if it has changed, unless it is .PRECIOUS.
# Complete files, also of nmtkit's commands, are kept that way. A dataset that lost its dataset.json could not be made again.
# There is no .DELETE_ON_ERROR: another make may have written the file.

# The commands of a rule run in bash, which stops at the first that fails.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# In the environment these names are ignored, unless FROM_THE_ENVIRONMENT has them: job scripts set such names there, for example
# to folders of the user.
NOT_FROM_THE_ENVIRONMENT := WORK RUN DATASET DATASETS TRAINPREFS MADE TEXT_FOLDER TRANSLATED TEXT_MADE_BY FETCHED_ELSEWHERE FOLDER URL HOW_TO_GET \
	ENDING VALID TEST TITLE CORPUS DIRECTION ALL ROW ROWS_FOLDER MODEL SEARCH LAUNCH ON_SEVERAL_MACHINES UNLESS_IN_USE
$(foreach name,$(filter-out $(FROM_THE_ENVIRONMENT),$(NOT_FROM_THE_ENVIRONMENT)),$(if $(filter environment,$(origin $(name))),$(eval undefine $(name))))
WORK ?= work
GIVEN := $(WORK)
override WORK := $(patsubst ./%,%,$(patsubst %/,%,$(WORK)))# make removes ./ from the names of targets; folder/ is folder
PROCESS := $(shell uname -n)-$(shell echo $$PPID)
part_of = $(1).$(PROCESS).part
# The make that the user called: it uses the commands of its steps until it ends.
ifndef FIRST_MAKE
export FIRST_MAKE := $(shell echo $$PPID)
endif

# The value of a variable, from the environment as it is: make would expand $.
given = $(if $(findstring environment,$(origin $(1))),$(value $(1)),$($(1)))

# What follows a command that writes the part of a file: the file is replaced if the command succeeds.
completes = $(call or_removes,$(1)); mv -f $(call part_of,$(1)) $(1)
or_removes = || { rm -f $(call part_of,$(1)); exit 1; }
# For bash: a word as it is.
quoted = '$(subst ','\'',$(1))'
# What follows a command that prints a file.
into = > $(call part_of,$(1)) $(call completes,$(1))

space := $() $()
number_sign := \#
opening := (
closing := )
# Why a folder's name is unusable; empty for others.
special = $(foreach character,: % = ; | $$ $(number_sign) ' " ` & < > ? * [ ] { } \ ! $(opening) $(closing),$(findstring $(character),$(1)))
unusable = $(if $(filter 1,$(words $(1))),$(strip $(call special,$(1))$(filter -% ~%,$(1))),spaces)
ifneq ($(call unusable,$(WORK))$(filter . ./%,$(WORK))$(findstring //,$(GIVEN)),)
$(error WORK=$(GIVEN): use a folder whose name is not empty or ., has no spaces, no // and no characters that are special to make or the shell, and does not begin with -, ~ or ././)
endif

ifeq ($(origin FIRST_MAKE),file)
has_nmtkit = import importlib.util, sys; sys.exit(importlib.util.find_spec("nmtkit") is None)
ifneq ($(shell python -c $(call quoted,$(has_nmtkit)) 2> /dev/null || echo no),)
$(error there is no python with nmtkit on the PATH: call make in the project's root, or first . .venv/bin/activate there)
endif
misdated := $(shell python ../dates.py $(WORK) || echo dates.py failed)
$(if $(misdated),$(error $(misdated)))
endif

# A folder has the same name in all commands, however it is given, except through links: absolute names outside this folder.
ifeq ($(call unusable,$(CURDIR)),)
override WORK := $(patsubst $(CURDIR)/%,%,$(abspath $(WORK)))
endif
RESULTS := $(WORK)# also where WORK becomes the folder of one experiment

$(foreach list,SEEDS CORPORA MODELS DIRECTIONS ROWS,$(if $(filter undefined,$(origin $(list)))$(strip $($(list))),,$(error $(list)=: give at least one)))
$(foreach list,SEEDS CORPORA MODELS DIRECTIONS ROWS,$(if $(filter-out $(words $(sort $($(list)))),$(words $($(list)))),$(error $(list)=$($(list)): give each once)))
# 01 would be a second training of seed 1.
whole := (0|[1-9][0-9]*)
are_whole = $(filter 0,$(shell grep -qxE '$(whole)( $(whole))*' <<< $(call quoted,$(strip $(1))); echo $$?))
# A number that is given, 1 or more: NAME, and what it counts.
check_count = $(if $(and $(filter 1,$(words $($(1)))),$(filter-out 0,$($(1))),$(call are_whole,$($(1)))),,\
	$(error $(1)=$($(1)): give a number of $(2), at least 1, without leading zeros))
# One of two words: NAME, what it names, the words.
check_either = $(if $(filter 1,$(words $($(1)))$(filter-out $(3),$($(1)))),,\
	$(error no $(2) $(1)=$($(1)): use $(firstword $(3)) or $(lastword $(3))))
$(if $(strip $(SEEDS)),$(if $(call are_whole,$(SEEDS)),,$(error SEEDS=$(SEEDS): give whole numbers without leading zeros)))

# With it, Python would not find the modules beside a script.
unexport PYTHONSAFEPATH
# With it, Python drops without an error what did not fit on a full disk.
unexport PYTHONUNBUFFERED

# Prints where a report is. The folder's name may have characters that are special to make or the shell.
print_place = file=$(1); [[ $$file == /* ]] || file=$$PWD/$$file; printf "report: %s\n" "$$file"

# Runs a command that prints a report, which also becomes report.md if the command succeeds. MODULES are the folders whose
# modules it imports. The lock keeps the report's files of one make; another waits.
MODULES := ..
print_report = @PYTHONPATH=$(MODULES)$${PYTHONPATH:+:$$PYTHONPATH} python ../locked.py --in-turn $(WORK)/report.lock \
	-- bash -euo pipefail -c $(call quoted,$(make_report))
make_report = shown=$$($(1) | tee $(call part_of,$(WORK)/report.md)) $(call completes,$(WORK)/report.md); printf "%s\n" "$$shown"
