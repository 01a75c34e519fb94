"""Prints what is wrong if a file of a folder is dated in the future; make, which compares dates, stops then.

    python dates.py work

Results that were made while a clock was ahead would count as newer than a changed command, and would not be made again.
"""

import sys
import time
from pathlib import Path

MARGIN = 60  # seconds: the clocks of machines that share a folder differ


def error(folder: Path, now: float) -> str:
    """The first file that is dated in the future, and what to do; empty if there is none."""
    for path in folder.rglob("*"):
        try:
            ahead = path.lstat().st_mtime - now
        except FileNotFoundError:  # another make has removed it
            continue
        if ahead > MARGIN:
            return (
                f"{path} is dated {ahead / 60:.0f} minutes in the future, so make cannot tell old results from new: "
                "correct the clock, or wait until then; touch the file if it is your own"
            )
    return ""


if __name__ == "__main__":
    print(error(Path(sys.argv[1]), time.time()))
