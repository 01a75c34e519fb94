"""The control groups (Linux cgroups) with which containers and batch systems limit this process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePath


def folders(controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yield each folder of a controller, such as `memory`, that may limit this process, with its version, 1 or 2: of
    its groups and their parents. Some may not exist, because a container sees only a few."""
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


def cpu_limits(root: Path = Path("/")) -> Iterator[float]:
    """Yield the CPU cores of each group with a limit, such as from `docker run --cpus 1.5`."""
    for version, folder in folders("cpu", root):
        with contextlib.suppress(OSError, ValueError):  # missing, or "max"
            if version == 2:
                quota, period = (int(word) for word in (folder / "cpu.max").read_text().split())
            else:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            if quota > 0:  # -1: no limit
                yield quota / period
