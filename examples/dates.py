"""Waits until no file of a folder is dated in the future, or prints what is wrong if that takes more than a minute.

    python dates.py work

make compares dates. Results that were made while a clock was ahead would count as newer than a changed command, and
would not be made again.
"""

import operator
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LONGEST_WAIT = 60  # seconds: the clocks of machines that share a folder differ
SHORTEST_NOTE = 2  # seconds


def error(path: Path, ahead: float) -> str:
    """What to do about a file that is dated so many seconds in the future; empty if one can wait."""
    if ahead <= LONGEST_WAIT:
        return ""
    return (
        f"{path} is dated {ahead / 60:.0f} minutes in the future, so make cannot tell old results from new: "
        "correct the clock, or wait until then; touch the file if it is your own"
    )


def latest(folder: Path) -> tuple[Path, float]:
    """The file of a folder with the latest date, and the date; the epoch without files."""
    return max(_dates(folder), key=operator.itemgetter(1), default=(folder, 0.0))


def wait(path: Path, ahead: float) -> None:
    """Wait until a file is no longer dated in the future."""
    if ahead > SHORTEST_NOTE:
        print(f"{path} is dated {ahead:.0f} seconds in the future: waiting until then", file=sys.stderr)
    time.sleep(max(0.0, ahead))


def main(folder: Path) -> None:
    path, date = latest(folder)
    ahead = date - time.time()
    if said := error(path, ahead):
        sys.stdout.buffer.write(os.fsencode(said))
    else:
        wait(path, ahead)


def _dates(folder: Path) -> Iterator[tuple[Path, float]]:
    """The date of each file and folder that can be seen, also behind links, as make sees them."""
    seen = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        for name in (*folders, *files):
            path = Path(place, name)
            try:
                found = path.stat()
            except OSError:  # another make has removed it, or it is a broken link
                continue
            yield path, found.st_mtime
            identity = found.st_dev, found.st_ino
            if name in folders and identity in seen:  # a loop of links
                folders.remove(name)
            seen.add(identity)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
