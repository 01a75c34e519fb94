"""Tells systemd the state of the service, as sd_notify(3) does."""

import os
import socket
import time


def notify(state: str) -> None:
    """Send a state such as `READY=1` to the service manager. Without a service manager, do nothing."""
    if path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(path.replace("@", "\0", 1) if path.startswith("@") else path)
            sender.sendall(state.encode())


def notify_reloading() -> None:
    """Send RELOADING=1 with the current time, which systemd needs to match the message with its signal."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
