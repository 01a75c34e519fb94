"""What users install: the sdist, the wheel's metadata, and the warning about a search that was not compiled."""

import re
import shutil
import subprocess
import sys
import tarfile
from email import message_from_string
from email.message import Message
from importlib.util import find_spec
from pathlib import Path

import pytest
from patience import PATIENCE
from repository import ROOT

pytestmark = pytest.mark.skipif(find_spec("setuptools") is None, reason="setuptools is not installed")
OWN_LIST = ROOT / "nmtkit.egg-info/SOURCES.txt"


def python(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a folder, without the environment of the tests."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONUTF8": "1", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def files() -> set[str]:
    """The files of the repository: those that git does not ignore, or in an sdist those that it lists itself."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
        names = listed.stdout.split("\0")
    elif OWN_LIST.exists():
        names = OWN_LIST.read_text(encoding="utf-8").splitlines()
    else:
        pytest.skip("neither a checkout nor an sdist")
    return {name for name in names if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def checkout(files: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, since setuptools writes into the folder that it packages."""
    folder = tmp_path_factory.mktemp("packages")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def from_backend(checkout: Path, hook: str, target: Path) -> Path:
    """What a hook of the build backend writes into `target`."""
    script = f"from setuptools import build_meta; print(build_meta.{hook}({str(target)!r}))"
    done = python(checkout, "-c", script)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def metadata(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> "Message[str, str]":
    """The metadata of a wheel."""
    folder = from_backend(checkout, "prepare_metadata_for_build_wheel", tmp_path_factory.mktemp("metadata"))
    return message_from_string((folder / "METADATA").read_text(encoding="utf-8"))


def test_the_sdist_has_every_file_of_the_repository(checkout: Path, files: set[str], tmp_path: Path) -> None:
    with tarfile.open(from_backend(checkout, "build_sdist", tmp_path)) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert files - packed == set()


def test_the_long_description_has_no_relative_links_or_pictures(metadata: "Message[str, str]") -> None:
    description = str(metadata.get_payload())
    assert "# nmtkit\n" in description
    assert re.findall(r"\]\((?!https?:)[^)]*\)|src=\"(?!https?:)[^\"]*", description) == []


def test_the_metadata_has_author_license_and_python_versions_but_no_urls(metadata: "Message[str, str]") -> None:
    assert metadata["Author"] == "nmtkit contributors"
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Home-page"] is metadata["Project-URL"] is metadata["Author-email"] is None
    versions = [name for name in metadata.get_all("Classifier", []) if re.search(r":: 3\.\d+$", name)]
    assert versions == [f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)]


def test_the_package_contains_its_data_but_no_native_sources(checkout: Path, files: set[str], tmp_path: Path) -> None:
    done = python(checkout, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path))
    assert done.returncode == 0, done.stderr
    built = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert built == {name for name in files if re.match("nmtkit/(?!native/)", name)}


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment in which compilers fail."""
    return {"CC": "false", "CXX": "false", "TMPDIR": str(tmp_path)}


def build(checkout: Path, target: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    folders = ("--build-lib", str(target / "lib"), "--build-temp", str(target / "temp"))
    return python(checkout, "setup.py", "build_ext", *folders, **environment)


def test_a_failed_compilation_is_a_warning(checkout: Path, tmp_path: Path, no_compiler: dict[str, str]) -> None:
    done = build(checkout, tmp_path, no_compiler)
    assert done.returncode == 0, done.stderr
    assert re.search(r"NOT COMPILED: nmtkit\._native_scalar\b.*install a C\+\+17 compiler", done.stderr)


def test_a_failed_compilation_is_an_error_if_the_native_build_is_required(
    checkout: Path, tmp_path: Path, no_compiler: dict[str, str]
) -> None:
    assert build(checkout, tmp_path, no_compiler | {"NMTKIT_NATIVE": "required"}).returncode != 0


def test_the_dockerfile_installs_with_the_commands_in_readme() -> None:
    steps = re.findall(r"^RUN (pip .+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(steps) == 2
    assert all(step in readme for step in steps)
