"""Command-line options that nmt-generate and nmt-serve share."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from nmtkit.cli.options import ConfigOption, PathName, prefer_command_line, refuse_idle
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


def refuse_idle_search_options(values: dict[str, Any]) -> None:
    """Raise UserError for options that this kind of search does not use or support."""
    prefer_command_line(values, "sampling", "diverse_groups")
    has_groups = values["diverse_groups"] not in (None, 1)
    if values["sampling"]:
        refuse_idle(values, ("beam", "diversity"), "with --sampling, which draws outputs")
    else:
        refuse_idle(values, ("top_k", "top_p", "temperature", "seed"), "without --sampling")
    if not has_groups:
        refuse_idle(values, ("diversity",), "without --diverse-groups")
    if not (values["glossary"] or values["ban"] or values.get("constraints")):
        refuse_idle(values, ("ignore_case",), "without --glossary, --constraints or --ban")
    if (values.get("constraints") or values["glossary"]) and (values["sampling"] or has_groups):
        raise UserError("--constraints and --glossary need a beam without --sampling and --diverse-groups")
