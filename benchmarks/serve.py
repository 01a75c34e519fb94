"""Benchmark: throughput and latency of a running service for increasing numbers of concurrent clients.

    nmt-serve --checkpoint averaged.pt --threads 1 --port 8080 &
    python benchmarks/serve.py --input test.en

Each request translates one line of the text over a new connection. A client waits for the response before it sends its
next request.
"""

import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import click

from nmtkit.text.reading import read_lines


def request_seconds(line: str, port: int) -> float:
    """Translate a line by a request; return its latency in seconds."""
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("POST", "/translate", json.dumps({"text": line}), {"content-type": "application/json"})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise click.ClickException(f"status {response.status}: {body.decode()}")
    return time.perf_counter() - start


@click.command()
@click.option("--input", "text", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--port", default=8080, show_default=True)
@click.option("--clients", multiple=True, default=(1, 8, 32, 100), show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Approximate duration for each number of clients.")
def main(text: Path, port: int, clients: tuple[int, ...], seconds: float) -> None:
    """Send requests to the service at PORT of this machine."""
    lines = cycle(line for line in read_lines(text) if line.strip())
    send_request = partial(request_seconds, port=port)
    click.echo("| clients at a time | requests/s | median | 95 % within |\n|---|---|---|---|")
    for count in clients:
        with ThreadPoolExecutor(count) as pool:
            start = time.perf_counter()
            list(pool.map(send_request, islice(lines, 2 * count)))  # warm-up, which also estimates the duration
            requests = max(2 * count, int(2 * count * seconds / (time.perf_counter() - start)))
            start = time.perf_counter()
            latencies = sorted(pool.map(send_request, islice(lines, requests)))
            rate = requests / (time.perf_counter() - start)
        median, p95 = 1000 * statistics.median(latencies), 1000 * latencies[int(0.95 * len(latencies))]
        click.echo(f"| {count} | {rate:.1f} | {median:,.0f} ms | {p95:,.0f} ms |")


if __name__ == "__main__":
    main()
