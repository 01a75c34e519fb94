"""Prints what is wrong if a file of a folder is dated in the future; make, which compares dates, stops then.

    python dates.py work

Results that were made while a clock was ahead would count as newer than a changed command, and would not be made again.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARGIN = 60  # seconds: the clocks of machines that share a folder differ


def error(folder: Path, now: float) -> str:
    """The first file that is dated in the future, and what to do; empty if there is none."""
    for path, date in _dates(folder):
        ahead = date - now
        if ahead > MARGIN:
            return (
                f"{path} is dated {ahead / 60:.0f} minutes in the future, so make cannot tell old results from new: "
                "correct the clock, or wait until then; touch the file if it is your own"
            )
    return ""


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
    sys.stdout.buffer.write(os.fsencode(error(Path(sys.argv[1]), time.time())))
