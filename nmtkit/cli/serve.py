"""nmt-serve: translations over HTTP."""

from pathlib import Path
from typing import Any

from nmtkit.cli.command import command
from nmtkit.cli.options import options_without
from nmtkit.cli.translation_options import checkpoint_option, refuse_idle_search_options
from nmtkit.console.log import LogConfig, configure
from nmtkit.errors import UserError
from nmtkit.serving.config import ServingOptions
from nmtkit.text.reading import check_readable

SET_BY_REQUESTS = ("nbest", "alignment")
ABOUT_ONE_TEXT = ("prefix", "constraints", "score", "buffer")


@command(
    "nmt-serve",
    common="checkpoint port host device precision threads workers beam length_penalty overlong max_tokens "
    "max_request_chars max_queue cors_origin glossary source_tag access_log quiet config",
)
@checkpoint_option
@options_without(
    (*SET_BY_REQUESTS, *ABOUT_ONE_TEXT), refuse_idle_search_options, **ServingOptions.groups(), log=LogConfig
)
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
    for path in filter(None, (*checkpoint, chosen.requests.glossary, chosen.engine.shortlist)):
        check_readable(path)
    try:
        from nmtkit.serving.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install starlette uvicorn prometheus-client") from error

    serve(checkpoint, chosen)
