"""Control groups: the limits of the CPU that containers and batch systems set."""

from pathlib import Path

import pytest

from nmtkit.machine.cgroups import cpu_limits


@pytest.mark.parametrize(
    ("line", "folder", "limited", "unlimited"),
    [
        ("0::/pod/job", "sys/fs/cgroup", {"cpu.max": "150000 100000"}, {"cpu.max": "max 100000"}),
        (
            *("4:cpu,cpuacct:/pod/job", "sys/fs/cgroup/cpu"),
            {"cpu.cfs_quota_us": "75000", "cpu.cfs_period_us": "50000"},
            {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
        ),
    ],
)
def test_the_cpu_limit_of_each_control_group_is_read(
    line: str, folder: str, limited: dict[str, str], unlimited: dict[str, str], tmp_path: Path
) -> None:
    assert list(cpu_limits(tmp_path)) == []  # as on a system without control groups
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"9:memory:/\n{line}\n")
    assert list(cpu_limits(tmp_path)) == []  # as within a container that does not see its own folder
    for group, files in (("", unlimited), ("pod", limited), ("pod/job", unlimited)):
        (tmp_path / folder / group).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (tmp_path / folder / group / name).write_text(f"{content}\n")
    assert list(cpu_limits(tmp_path)) == [1.5]
