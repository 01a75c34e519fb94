"""The metrics of the service for Prometheus."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # upper bounds of the buckets


class Metrics:
    """Counters and gauges in their own registry. Any thread may change them."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # for the whole process: metrics of little use
        self._registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.lines = counter("nmtkit_lines_total", "Lines translated, including blank lines.")
        self.tokens = counter("nmtkit_tokens_total", "Tokens of the best translations, without </s>.")
        self.rounds = counter("nmtkit_rounds_total", "Rounds: searches for the lines of one or more requests.")
        self.search_seconds = counter("nmtkit_search_seconds_total", "Seconds spent on rounds.")
        self.failures = counter("nmtkit_failures_total", "Requests that failed in the search.")
        self.cut = counter("nmtkit_cut_total", "Lines whose translation ended at its maximum length.")
        self.repetitive = counter("nmtkit_repetitive_total", "Lines whose translation repeats itself.")
        self.queued_lines = gauge("nmtkit_queued_lines", "Lines that are waiting or being translated.")
        self.open_requests = gauge("nmtkit_open_requests", "Requests with a complete body that are being translated.")
        self.open_connections = gauge("nmtkit_open_connections", "Open connections.")
        self.models = Info(
            "nmtkit_model", "A model in use and the version of nmtkit.", ("source", "target"), registry=registry
        )
        self._requests = counter("nmtkit_requests_total", "Requests answered.", ("path", "status"))
        self._request_seconds = Histogram(
            "nmtkit_request_seconds",
            "Seconds from the head of a request to /translate to the end of the response.",
            buckets=_SECONDS,
            registry=registry,
        )

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request, and for /translate its duration in seconds."""
        self._requests.labels(path, str(status)).inc()
        if path == "/translate":
            self._request_seconds.observe(seconds)

    def text(self) -> str:
        """Format all metrics in the text format of Prometheus."""
        return generate_latest(self._registry).decode()
