"""How a running service answers: requests a second, and how long one takes, for more and more clients at a time.

    nmt-serve --checkpoint averaged.pt --threads 1 --port 8080 &
    python benchmarks/serve.py --input test.en

Each request is for a line of the text, over a connection of its own; a client sends the next when it has its answer.
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

from nmtkit.text import read_lines


def seconds_of(line: str, port: int) -> float:
    """Have a line translated."""
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
@click.option("--seconds", default=10.0, show_default=True, help="About how long each number of clients is tried.")
def main(text: Path, port: int, clients: tuple[int, ...], seconds: float) -> None:
    """Ask the service at PORT of this machine."""
    lines = cycle(line for line in read_lines(text) if line.strip())
    ask = partial(seconds_of, port=port)
    click.echo("| clients at a time | requests/s | median | 95 % within |\n|---|---|---|---|")
    for count in clients:
        with ThreadPoolExecutor(count) as pool:
            start = time.perf_counter()
            list(pool.map(ask, islice(lines, 2 * count)))  # to warm up, and to see how long it takes
            requests = max(2 * count, int(2 * count * seconds / (time.perf_counter() - start)))
            start = time.perf_counter()
            took = sorted(pool.map(ask, islice(lines, requests)))
            rate = requests / (time.perf_counter() - start)
        median, most = 1000 * statistics.median(took), 1000 * took[int(0.95 * len(took))]
        click.echo(f"| {count} | {rate:.1f} | {median:,.0f} ms | {most:,.0f} ms |")


if __name__ == "__main__":
    main()
