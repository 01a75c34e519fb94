"""Options that a command no longer has, and what to use instead. An entry stays for one release."""

_IN_FILES = "was removed from the command line: set it in a --config file, as options.json of a run does"
_TO_NEW_RUN = "was removed: start a new run with --init-from CHECKPOINT and another --save-dir"
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
    "nmt-train": {
        "--activation --output-bias --d-bottleneck --separate-output": _IN_FILES,
        "--lora-alpha --lora-targets --lora-train": _IN_FILES,
        "--reset-optimizer --reset-lr-schedule": _TO_NEW_RUN,
        "--max-save-failures": "was removed: a run ends after 3 checkpoints in a row that cannot be written",
        "--shard-optimizer": "was removed: use a GPU with more memory, or a smaller model",
    },
    "nmt-score": {
        "--confidence-n --paired-bs-n --paired-ar-n": "was removed: the number is sacreBLEU's own default",
        "--paired-ar": "was removed: use --paired-bs",
    },
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
