"""Downloads a file of known size and checksum; an interrupted download is resumed.

python examples/download.py URL FILE SIZE sha256:SUM
"""

import hashlib
import subprocess
import sys
from pathlib import Path

CURL = ("curl", "--fail", "--location", "--show-error", "--retry", "3")
PATIENCE = ("--connect-timeout", "60", "--speed-limit", "1", "--speed-time", "60")


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal checksum of a file."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def mismatch(path: Path, size: int, known: str) -> str:
    """How a file differs from its known size (0 if unknown) and checksum, which is ALGORITHM:HEXADECIMAL."""
    found, (algorithm, _, expected) = path.stat().st_size, known.partition(":")
    if size not in (0, found):
        return f"it has {found} bytes instead of {size}"
    return "" if checksum(path, algorithm) == expected else f"its {algorithm} is not {expected}"


def download(url: str, path: Path, size: int, known: str) -> None:
    """Download a file; an interrupted download is resumed. Exits with a message if it fails."""
    part = path.with_name(f"{path.name}.part")
    try:
        progress = [] if sys.stderr.isatty() else ["--silent"]
        code = subprocess.call([*CURL, *PATIENCE, *progress, "-C", "-", "-o", part, url])
    except FileNotFoundError:
        sys.exit("curl is missing: install it, or give a folder with the files")
    fault = mismatch(part, size, known) if part.exists() else "no data"
    if fault and (code or not part.exists()):
        sys.exit(f"{url}: the download failed; to resume it, run the same command again")
    if fault:
        part.unlink()
        sys.exit(f"{url}: the download is damaged ({fault}); run the same command again")
    part.replace(path)


if __name__ == "__main__":
    download(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
