# The folder of all results, WORK. A Makefile with its own rules before recipe.mk includes this file first.
WORK ?= work
number_sign := \#
opening := (
closing := )
unusable := $(foreach character,: % = ; | $$ $(number_sign) ' " ` & < > ? * [ ] \ ! $(opening) $(closing),$(findstring $(character),$(WORK)))
ifneq ($(words $(WORK))$(strip $(unusable))$(filter -%,$(WORK)),1)
$(error WORK=$(WORK): use a folder whose name is not empty, has no spaces and no characters that are special to make or the shell, and does not begin with -)
endif
