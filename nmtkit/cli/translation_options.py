"""Command-line options that nmt-generate and nmt-serve share."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.options import ConfigOption, PathName, ignore_from_file, ignore_or_refuse, refuse_idle
from nmtkit.errors import UserError


class _CheckpointOption(ConfigOption):
    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            dataset = ctx.params.get("dataset")
            if isinstance(dataset, Path) and dataset.is_file():
                raise UserError(f"{dataset} is a file: for a checkpoint write --checkpoint {dataset}") from None
            raise


checkpoint_option = partial(
    click.option,
    "--checkpoint",
    cls=_CheckpointOption,
    heading="Model",
    multiple=True,
    type=PathName(),
    metavar="FILE",
    help="Checkpoint of nmt-train, nmt-average or nmt-import. Repeat for an ensemble, which averages probabilities.",
)


_DRAWING = ("top_k", "top_p", "temperature", "seed")


def refuse_idle_search_options(values: dict[str, Any]) -> None:
    """Raise UserError for options that this kind of search does not use or support."""
    if _has_groups(values):
        ignore_from_file(values, ("sampling", *_DRAWING), "diverse_groups")
    if values["sampling"]:
        ignore_from_file(values, ("beam", "diverse_groups", "diversity"), "sampling")
        refuse_idle(("beam", "diversity"), "with --sampling, which draws outputs")
    else:
        ignore_or_refuse(values, _DRAWING, "without --sampling", "sampling")
    if not _has_groups(values):
        ignore_or_refuse(values, ("diversity",), "without --diverse-groups", "diverse_groups")
    if not (values["glossary"] or values["ban"] or values.get("constraints")):
        ignore_or_refuse(values, ("ignore_case",), "without --glossary, --constraints or --ban")
    if (values.get("constraints") or values["glossary"]) and (values["sampling"] or _has_groups(values)):
        raise UserError("--constraints and --glossary need a beam without --sampling and --diverse-groups")


def _has_groups(values: dict[str, Any]) -> bool:
    return values["diverse_groups"] not in (None, 1)
