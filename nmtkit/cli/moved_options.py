"""Options that a command no longer has, and what to use instead. An entry stays for one release."""

_TO_SERVE = "moved to nmt-serve: use nmt-serve --checkpoint … --port 8080"

# command -> options, separated by spaces -> the rest of the message
_MOVED: dict[str, dict[str, str]] = {
    "nmt-generate": {
        "--serve": _TO_SERVE,
        "--max-body --max-request-lines --max-request-chars --max-queue --max-requests --max-connections": _TO_SERVE,
    },
    "nmt-preprocess": {"--no-dedup": "was removed: use --dedup none"},
    "nmt-serve": {
        "--serve": "is the command itself: use --port 8080, and --host 0.0.0.0 for all interfaces",
        "--nbest --alignment": "is a field of each request, not an option of the server",
        "--max-body": "was removed: it follows from --max-request-chars",
        "--max-request-lines": "was removed: use --max-queue",
        "--max-requests --max-connections": "was removed: use --max-queue, and limit connections in the proxy",
    },
}


def moved(command: str, option: str) -> str | None:
    """One line about an option that `command` no longer has; None for any other option."""
    spelling = option.replace("_", "-")
    for options, instead in _MOVED.get(command, {}).items():
        if spelling in options.split():
            return f"{spelling} {instead}"
    return None
