"""Command-line options that nmt-generate and nmt-serve share."""

from pathlib import Path
from typing import Any

import click

from nmtkit.cli.options import ConfigOption, PathName, refuse_idle
from nmtkit.decoding.config import RequestConfig, SearchConfig
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


checkpoint_option = click.option(
    "--checkpoint",
    cls=_CheckpointOption,
    heading="Model",
    required=True,
    multiple=True,
    type=PathName(),
    metavar="FILE",
    help="A checkpoint of nmt-train or nmt-average, which includes the vocabulary and the tokenizer. "
    "Several form an ensemble, whose probabilities are averaged.",
)


def check_search_options(search: SearchConfig, requests: RequestConfig) -> None:
    """Raise UserError if the user set options that this kind of search does not use or support."""
    if search.sampling:
        refuse_idle(("beam", "diversity"), "with --sampling, which draws outputs")
    else:
        refuse_idle(("top_k", "top_p", "temperature", "seed"), "without --sampling")
    if search.diverse_groups == 1:
        refuse_idle(("diversity",), "without --diverse-groups")
    if (requests.constraints or requests.glossary) and (search.sampling or search.diverse_groups > 1):
        raise UserError("--constraints and --glossary need a beam without --sampling and --diverse-groups")
