"""Options that a command no longer has, and what to use instead. An entry stays for one release."""

_TO_SERVE = "moved to nmt-serve: use nmt-serve --checkpoint … --port 8080"

# command -> options, separated by spaces -> the rest of the message
_MOVED: dict[str, dict[str, str]] = {
    "nmt-generate": {
        "--serve": _TO_SERVE,
        "--max-body --max-request-lines --max-request-chars --max-queue --max-requests --max-connections": _TO_SERVE,
    },
    "nmt-preprocess": {
        "--no-dedup": "was removed: use --dedup none",
        "--min-words --max-words --min-chars --max-chars": "was removed: use --max-length, or filter the text before",
        "--max-char-ratio": "was removed: use --max-ratio",
        "--max-word-length --max-repeats --max-url-share --min-alphanumeric": "was removed: filter the text before",
        "--min-script": "was removed: a side needs half of its letters in --source-script or --target-script",
    },
    "nmt-serve": {
        "--serve": "is the command itself: use --port 8080, and --host 0.0.0.0 for all interfaces",
        "--nbest --alignment": "is a field of each request, not an option of the server",
    },
}


def moved(command: str, option: str) -> str | None:
    """One line about an option that `command` no longer has; None for any other option."""
    spelling = option.replace("_", "-")
    for options, instead in _MOVED.get(command, {}).items():
        if spelling in options.split():
            return f"{spelling} {instead}"
    return None
