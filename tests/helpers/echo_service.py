"""The HTTP service with a search that repeats the source, for requests to its application."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.requests import Request
from nmtkit.decoding.translation import Candidate, Translation
from nmtkit.serving.app import Service
from nmtkit.serving.config import Languages, ServeConfig
from nmtkit.serving.models import Model
from nmtkit.serving.prometheus import Metrics
from nmtkit.serving.scheduler import DynamicBatcher
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import EOS, SPECIALS


@contextmanager
def echo_service(
    tokenizer: Tokenizer, config: ServeConfig, pairs: Sequence[Languages] = (("en", "de"),)
) -> Iterator[tuple[Service, Metrics]]:
    """A service from en to de, or for other pairs.

    The hypotheses of the line `a` are `a`, `2 a`, `3 a`, …; a blank line has one.
    """

    def repeat(
        lines: Sequence[str | Request], search: SearchConfig, advance: Callable[[int], None]
    ) -> list[Translation]:
        advance(len(lines))
        found = []
        texts = [line if isinstance(line, str) else line.text for line in lines]
        segments = [None if isinstance(line, str) else line.segment for line in lines]
        for line, segment, ids in zip(texts, segments, tokenizer.encode(texts), strict=True):
            tokens = (*tokenizer.vocab.to_pieces(ids), SPECIALS[EOS])
            versions = [
                " ".join([*([str(rank)] if rank > 1 else []), *line.split()]) for rank in range(1, search.nbest + 1)
            ]
            candidates = tuple(
                Candidate(text, -1.0, tokens, (-0.5,) * len(tokens), None, ((0, 0),) if ids else (), segment=segment)
                for text in (versions if ids else versions[:1])
            )
            found.append(Translation(line, candidates, tokens if search.alignment else None))
        return found

    metrics = Metrics()
    batcher = DynamicBatcher(1000, metrics)
    try:
        models = [Model(repeat, tokenizer, pair) for pair in pairs]
        yield Service(batcher, models, config, metrics), metrics
    finally:
        batcher.close()
