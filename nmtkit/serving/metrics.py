"""The metrics of the service, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # upper bounds of the histogram's buckets
_HELP = {
    "nmtkit_lines_total": "Lines translated, blank ones included.",
    "nmtkit_tokens_total": "Tokens of the best translations, without </s>.",
    "nmtkit_rounds_total": "Rounds: searches for the lines of one or more requests.",
    "nmtkit_search_seconds_total": "Seconds spent on rounds.",
    "nmtkit_failures_total": "Requests that failed in the search.",
    "nmtkit_queued_lines": "Lines that wait for their translation or are being translated.",
    "nmtkit_open_requests": "Requests whose body has arrived and that are being translated.",
    "nmtkit_open_connections": "Open connections.",
}


class Metrics:
    """Counters and gauges by name; any thread may change them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = dict.fromkeys(_HELP, 0)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(_SECONDS) + 1)
        self._seconds = 0.0

    def add(self, name: str, amount: float = 1) -> None:
        """Change `nmtkit_<name>`."""
        with self._lock:
            self._values[f"nmtkit_{name}"] += amount

    def set(self, name: str, value: float) -> None:
        """Set `nmtkit_<name>`."""
        with self._lock:
            self._values[f"nmtkit_{name}"] = value

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request, and for /translate the time that it took."""
        with self._lock:
            self._requests[path, status] += 1
            if path == "/translate":
                self._buckets[bisect_left(_SECONDS, seconds)] += 1
                self._seconds += seconds

    def text(self) -> str:
        """All metrics in the text format."""
        with self._lock:
            lines = [line for name in _HELP for line in _described(name, _HELP[name], self._values[name])]
            lines += ["# HELP nmtkit_requests_total Requests answered.", "# TYPE nmtkit_requests_total counter"]
            lines += [
                f'nmtkit_requests_total{{path="{path}",status="{status}"}} {count}'
                for (path, status), count in sorted(self._requests.items())
            ]
            lines += self._histogram("nmtkit_request_seconds")
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        lines = [
            f"# HELP {name} Seconds from the head of a request to translate to the end of its answer.",
            f"# TYPE {name} histogram",
        ]
        total = 0
        for bound, count in zip((*_SECONDS, "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]


def _described(name: str, words: str, value: float) -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}", f"{name} {value:.6f}".removesuffix(".000000")]
