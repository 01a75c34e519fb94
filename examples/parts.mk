# Translates a text in parts, one by one or each on a machine that shares the work folder. A recipe defines the command
# `translate`, the checkpoint that it loads (TRANSLATOR), the other files that it reads (TRANSLATED), the folder of the parts
# (PARTS_FOLDER) and their suffix (PARTS_SUFFIX), and includes this file after recipe.mk. ALL_PARTS are the results, in order.

# As many as the latest translation has, interrupted or finished; another number translates all of them again. The names
# are those of parts of any number, the latest first.
names_of_parts = $(shell ls -t $(PARTS_FOLDER) 2> /dev/null | grep -xE '[1-9][0-9]*-of-[1-9][0-9]*\.$(PARTS_SUFFIX)(\.partial)?' | \
	while IFS=-. read -r part _ parts rest; do [ $$part -gt $$parts ] || echo "$$part-of-$$parts.$$rest"; done)
number_of = $(firstword $(subst ., ,$(lastword $(subst -of-, ,$(firstword $(1))))))
latest := $(or $(call number_of,$(names_of_parts)),$(firstword $(shell cat $(PARTS_FOLDER)/begun 2> /dev/null)))# evaluated here, before a rule removes the parts
PARTS ?= $(or $(latest),1)
$(call check_count,PARTS,parts)
begun_parts = $(names_of_parts:%=$(PARTS_FOLDER)/%)
part_file = $(PARTS_FOLDER)/$(1)-of-$(PARTS).$(PARTS_SUFFIX)
ALL_PARTS := $(foreach part,$(shell seq $(PARTS)),$(call part_file,$(part)))

.PHONY: ready part
ready: $(PARTS_FOLDER)/begun
part: $(call part_file,$(PART))

ifneq ($(filter part,$(MAKECMDGOALS)),)
ifneq ($(words $(PART))$(filter $(PART),$(shell seq $(PARTS))),1$(PART))
$(error PART=$(PART): give the part to translate, 1 to PARTS=$(PARTS))
endif
# make part makes nothing else: other machines run it at the same time and read the same files.
.PHONY: is-ready
$(PARTS_FOLDER)/begun: | is-ready
is-ready:
	@$(call check_ready,$(PARTS_FOLDER)/translate.command,$(PARTS_FOLDER)/begun,$(TRANSLATOR) $(TRANSLATED),PART)
else
# Another checkpoint, text or command translates all parts again, unless a part is being translated. Otherwise an interrupted
# part is resumed. `begun` contains the number of parts until there are any, and the checksum of what they are made from: files
# that were made again as before repeat no part.
$(PARTS_FOLDER)/begun: $(TRANSLATOR) $(TRANSLATED) $(PARTS_FOLDER)/translate.command
	@python ../locked.py $(PARTS_FOLDER)/translate.command $(begun_parts) -- bash -euc $(call quoted,$(begin_parts))
finished_parts = $(filter-out %.partial,$(begun_parts))
begin_parts = sum=$$(cat $^ | cksum); finished=; \
	if grep -qsxF "$$sum" $@; then finished="$(finished_parts)"; else rm -f $(begun_parts); fi; \
	printf "%s\n" $(PARTS) "$$sum" > $@; [ ! "$$finished" ] || touch $$finished
endif

# All parts come from one checkpoint and one text: nothing replaces them while a part is translated, and a part is refused if
# something has replaced them since the first.
translate_part = $(translate) --shard $*/$(PARTS) --resume --output $@
check_inputs = for file in $(TRANSLATOR) $(TRANSLATED); do [ ! $$file -nt $(PARTS_FOLDER)/begun ] || \
	{ echo "another make has replaced $$file: call make again" >&2; exit 1; }; done

.PRECIOUS: $(TRANSLATOR) $(PARTS_FOLDER)/begun $(ALL_PARTS)
$(ALL_PARTS): private COMMANDS = $(PARTS_FOLDER)/translate.command
$(ALL_PARTS): private READS = $(TRANSLATOR) $(TRANSLATED)
$(ALL_PARTS): private REPLACED = --if-needed $@
$(ALL_PARTS): $(call part_file,%): $(PARTS_FOLDER)/begun
	@$(info $(translate_part))$(LOCKED) -- bash -c $(call quoted,$(check_inputs); exec $(translate_part))
