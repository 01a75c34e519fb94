"""nmt-serve: translates over HTTP."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from nmtkit.cli.command import command
from nmtkit.cli.options import options_without, prefer_command_line, refuse_idle
from nmtkit.cli.translation_options import checkpoint_option, refuse_idle_search_options
from nmtkit.console.log import LogConfig, configure
from nmtkit.errors import UserError
from nmtkit.serving.config import Languages, ServingOptions
from nmtkit.text.reading import check_readable

#: Options of nmt-generate that requests set, or that are about one text.
NOT_OF_A_SERVER = ("nbest", "alignment", "prefix", "constraints", "score", "buffer")


def refuse_idle_server_options(values: dict[str, Any]) -> None:
    """Raise UserError for options that exclude each other or have no effect."""
    refuse_idle_search_options(values)
    if values["fd"] is not None:
        refuse_idle(values, ("port", "host"), "with --fd")
    prefer_command_line(values, "checkpoint", "model")
    if values["checkpoint"] and values["model"]:
        raise UserError("--checkpoint and --model are mutually exclusive: use one of them")
    if not (values["checkpoint"] or values["model"]):
        raise UserError("no model to serve: use --checkpoint FILE, or --model PAIR=FILE for each of several")


@command(
    "nmt-serve",
    common="checkpoint model port host device precision threads workers beam length_penalty overlong max_tokens "
    "max_request_chars max_queue cors_origin glossary source_lang target_lang source_tag access_log quiet config",
)
@checkpoint_option(required=False)
@options_without(NOT_OF_A_SERVER, refuse_idle_server_options, **ServingOptions.groups(), log=LogConfig)
def main(checkpoint: tuple[Path, ...], log: LogConfig, **groups: Any) -> None:
    """Translate over HTTP until Ctrl-C or SIGTERM.

    \b
    nmt-serve --checkpoint averaged.pt --port 8080
    curl localhost:8080/translate -H 'Content-Type: application/json' -d '{"text": "A dog runs."}'

    POST /translate reads and writes JSON. GET / opens a page to translate in the browser. /health and /metrics are for
    monitoring. /openapi.json describes the API.
    """
    configure(log)
    chosen = ServingOptions(**groups)
    files: dict[Languages | None, Sequence[Path]]
    files = {pair: (path,) for pair, path in chosen.server.models.items()} or {None: checkpoint}
    for path in filter(None, (*chain(*files.values()), chosen.requests.glossary, chosen.engine.shortlist)):
        check_readable(path)
    try:
        from nmtkit.serving.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install starlette uvicorn prometheus-client") from error

    serve(files, chosen)
