"""A server under a service manager: its socket, its state, and a new model without a restart."""

import json
import os
import re
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from patience import PATIENCE
from running_server import Server

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from nmtkit.checkpoint import load_checkpoint, save_checkpoint
from nmtkit.version import __version__


def health(server: Server) -> Any:
    return json.loads(server.request("GET", "/health")[1])


def updates(server: Server) -> list[str]:
    return [model["update"] for model in health(server)["models"]]


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    path = tmp_path / "served.pt"
    save_checkpoint(path, replace(load_checkpoint(tiny_checkpoint), progress={"update": 1}))
    return path


def test_health_and_metrics_identify_the_model(checkpoint: Path) -> None:
    server = Server(checkpoint)
    checksum = (load_checkpoint(checkpoint).checksum or "")[:12]
    names = {"source_language": "en", "target_language": "de"}
    shown = {"model": "served.pt", "checkpoint": checksum, "update": "1"}
    assert health(server) == {"status": "ok", "version": __version__, "models": [names | shown]}
    labels = server.request("GET", "/metrics")[1].decode().partition("nmtkit_model_info{")[2].partition("}")[0]
    shown |= {"version": __version__, "source": "en", "target": "de"}
    assert dict(re.findall(r'(\w+)="(.*?)"', labels)) == shown
    server.end()


def test_sighup_loads_a_replaced_checkpoint(checkpoint: Path) -> None:
    server = Server(checkpoint, start_new_session=True)
    save_checkpoint(checkpoint, replace(load_checkpoint(checkpoint), progress={"update": 2}))
    assert updates(server) == ["1"]
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE
    while updates(server) != ["2"]:
        assert time.monotonic() < deadline
    assert server.translate(text="") == [{"text": ""}]
    assert "reloaded served.pt" in server.end()[1]


def test_a_failed_reload_keeps_the_model_and_is_reported(checkpoint: Path) -> None:
    server = Server(checkpoint, start_new_session=True)
    broken = checkpoint.with_name("broken.pt")
    broken.write_bytes(b"not a checkpoint")
    broken.rename(checkpoint)
    server.process.send_signal(signal.SIGHUP)
    assert server.process.stderr is not None
    assert (
        f"cannot reload served.pt, the current model stays in use: {checkpoint}"
        in server.process.stderr.readline().decode()
    )
    assert server.translate(text="the dog runs")[0]["text"] is not None
    assert updates(server) == ["1"]
    server.end()


def test_an_inherited_socket_answers_connections_made_before_the_start(checkpoint: Path, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        with socket.create_connection(listener.getsockname(), timeout=PATIENCE) as early:
            early.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
            number = listener.fileno()
            server = Server(checkpoint, "--fd", number, pass_fds=[number], env=environment, start_new_session=True)
            assert server.port == listener.getsockname()[1]
            assert manager.recv(100) == b"READY=1"
            assert early.recv(100).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGHUP)
        assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(100) == b"READY=1"
        server.end()


def test_a_descriptor_without_a_tcp_socket_is_refused(checkpoint: Path, tmp_path: Path, run_here: Run) -> None:
    with (tmp_path / "file").open("w") as file, socket.socket(socket.AF_UNIX) as local:
        for number, message in (
            (file.fileno(), "pass a listening socket"),
            (os.dup(local.fileno()), "not a TCP socket"),
        ):
            done = run_here("nmt-serve", "--checkpoint", checkpoint, "--fd", number)
            assert done.returncode == 2
            assert f"--fd {number}".encode() in done.stderr
            assert message.encode() in done.stderr
