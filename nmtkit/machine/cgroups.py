"""The control groups of this process (Linux cgroups), by which containers and batch systems limit it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePath

_ROOT = Path("/")


def folders(controller: str, root: Path = _ROOT) -> Iterator[tuple[int, Path]]:
    """Each folder of a controller, such as `memory`, that may limit this process, with its version, 1 or 2.

    These are the folders of its groups and of those around them. Not every folder exists: a container sees only a part.
    """
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, top = 2, root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, top = 1, root / "sys/fs/cgroup" / controller
        else:
            continue
        own = PurePath(path.lstrip("/"))
        yield from ((version, top / part) for part in (own, *own.parents))


def cpu_limits(root: Path = _ROOT) -> Iterator[float]:
    """The CPU cores of each group that has a limit, as of `docker run --cpus 1.5`."""
    for version, folder in folders("cpu", root):
        with contextlib.suppress(OSError, ValueError):  # missing, or "max"
            if version == 2:
                quota, period = (int(word) for word in (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # -1: no limit
                yield quota / period
