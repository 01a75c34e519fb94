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
SHORTEST_NOTE = 2  # seconds; a shorter wait is silent


def main(folder: Path) -> None:
    path, date = max(_dates(folder), key=operator.itemgetter(1), default=(folder, 0.0))
    ahead = date - time.time()
    if ahead > LONGEST_WAIT:
        said = (
            f"{path} is dated {ahead / 60:.0f} minutes in the future, so make cannot tell old results from new: "
            "correct the clock, or wait until then; touch the file if it is your own"
        )
        sys.stdout.buffer.write(os.fsencode(said))
    elif ahead > 0:
        if ahead > SHORTEST_NOTE:
            print(f"{path} is dated {ahead:.0f} seconds in the future: waiting until then", file=sys.stderr)
        time.sleep(ahead)


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
