# The folder of all results, WORK. A Makefile with its own rules before recipe.mk includes this file first.
WORK ?= work
number_sign := \#
unusable := $(foreach character,: % = ; | $$ $(number_sign),$(findstring $(character),$(WORK)))
ifneq ($(words $(WORK))$(strip $(unusable)),1)
$(error WORK=$(WORK): make cannot handle a folder whose name is empty or has spaces or any of : % = ; | $$ $(number_sign))
endif
