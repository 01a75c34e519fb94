"""The options of the HTTP service."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from nmtkit.config import Config, OptionGroups, option
from nmtkit.decoding.config import EngineConfig, RequestConfig, SearchConfig, StreamConfig
from nmtkit.errors import UserError
from nmtkit.model.config import WeightsConfig

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s@?#A-Z]+")  # as sent by browsers: lower case, without a path

Languages = tuple[str, str]  # source and target, as requests name them
_PAIR = re.compile("(LANG)-(LANG)=(.+)".replace("LANG", "[^=-]+(?:-[A-Z0-9][^=-]*)*"))  # LANG: such as pt or pt-BR


@dataclass(frozen=True)
class ServeConfig(Config):
    heading: ClassVar[str] = "Server"

    model: tuple[str, ...] = option(
        (),
        metavar="PAIR=FILE",
        help="Checkpoint of a language pair, such as en-de=averaged.pt, instead of --checkpoint. Repeat for several "
        "pairs; each request chooses one by source and target.",
    )
    port: int = option(8080, min=0, max=65535, help="Port to listen on. 0 picks a free one.")
    host: str = option(
        "127.0.0.1", metavar="NAME", help="Address or name to listen on. 0.0.0.0 and :: listen on all interfaces."
    )
    fd: int | None = option(
        None,
        min=3,
        metavar="N",
        unset="binds --host and --port",
        help="Accept connections on the listening TCP socket that this process inherited as descriptor N, instead of "
        "--host and --port. systemd passes its first socket as 3.",
    )
    max_request_chars: int = option(
        100_000, min=1, help="Maximum characters of a request, times its nbest. Longer ones get status 413."
    )
    max_queue: int = option(
        10_000,
        min=1,
        metavar="LINES",
        help="Maximum lines in the queue. A request that does not fit gets status 429. A request with more "
        "lines gets status 413.",
    )
    cors_origin: tuple[str, ...] = option(
        (),
        metavar="ORIGIN",
        help="Origin whose web pages may use the server from a browser, such as https://example.org. *: all. "
        "Repeatable.",
    )
    access_log: bool = option(
        False, help="Log each request: client, method, path, status, bytes of the response, milliseconds."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = [tuple(code.lower() for code in pair) for pair in self.models]
        if len(set(pairs)) < len(self.model):
            raise UserError("--model: two models have the same languages: give each pair once")
        for origin in self.cors_origin:
            if not _ORIGIN.fullmatch(origin):
                raise UserError(
                    f"--cors-origin {origin} is not an origin: use one such as https://example.org, in lower case and "
                    "without a path, or *"
                )

    @property
    def models(self) -> dict[Languages, Path]:
        """The checkpoints of --model by their languages. Raises UserError for a malformed value."""
        found = {}
        for value in self.model:
            match = _PAIR.fullmatch(value)
            if match is None:
                raise UserError(f"--model {value} is not a language pair and a file: use one such as en-de=averaged.pt")
            found[match[1], match[2]] = Path(match[3])
        return found

    @property
    def max_body(self) -> int:
        """The maximum size of a request body in bytes: 12 per character, as in JSON escapes, plus other fields."""
        return 12 * self.max_request_chars + (1 << 16)


@dataclass(frozen=True)
class ServingOptions(OptionGroups):
    """All options of nmt-serve except those for messages. Requests set `nbest` and `alignment` of the search."""

    weights: WeightsConfig = field(default_factory=WeightsConfig)
    server: ServeConfig = field(default_factory=ServeConfig)
    requests: RequestConfig = field(default_factory=RequestConfig)  #: only its glossary
    search: SearchConfig = field(default_factory=lambda: SearchConfig(explicit=()))
    batches: StreamConfig = field(default_factory=StreamConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
