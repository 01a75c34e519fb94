"""Compiled modules of other C++ sources than those of the checkout are not used."""

import contextlib
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from native_builds import BUILDS
from patience import PATIENCE

from nmtkit.machine import native_build, native_sources

needs_sources = pytest.mark.skipif(not native_sources.FOLDER.is_dir(), reason="not a checkout")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of nmtkit/native, which `native_sources` reads instead."""
    folder = shutil.copytree(native_sources.FOLDER, tmp_path / "native")
    monkeypatch.setattr(native_sources, "FOLDER", folder)
    return folder


@needs_sources
@pytest.mark.skipif(native_build.native is None, reason="nothing is compiled")
def test_the_compiled_modules_belong_to_the_sources() -> None:
    assert native_build.native is not None
    assert not native_sources.is_stale(native_build.native)


@needs_sources
def test_the_digest_depends_on_the_content_and_the_name_of_each_source(copied: Path) -> None:
    digests = {native_sources.digest()}
    sources = sorted(path for path in copied.iterdir() if path.suffix in (".h", ".cpp"))
    for path in sources:
        path.write_bytes(path.read_bytes() + b"//")
        digests.add(native_sources.digest())
    sources[0].rename(copied / "renamed.h")
    digests.add(native_sources.digest())
    assert len(digests) == len(sources) + 2


def test_a_module_of_an_early_release_is_stale_and_none_is_without_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, is_stale in ((Path(__file__).parent, True), (Path("/missing"), False)):
        monkeypatch.setattr(native_sources, "FOLDER", folder)
        assert native_sources.is_stale(ModuleType("without_digest")) == is_stale


@needs_sources
@pytest.mark.skipif(native_build.native is None, reason="nothing is compiled")
def test_stale_builds_are_named_and_not_loaded(copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    (copied / "new.h").touch()
    runnable = set()
    for name in BUILDS:
        with contextlib.suppress(ImportError):  # not compiled, or not for this CPU
            import_module(f"nmtkit.{name}")
            runnable.add(name)
    assert native_build._load() is None
    assert {record.message for record in caplog.records} == {native_sources.STALE % name for name in runnable}


@needs_sources
def test_a_stale_word_cache_is_named_and_not_used() -> None:
    pytest.importorskip("nmtkit._words")
    script = (
        "from nmtkit.machine import native_sources; native_sources.digest = lambda: 'of other sources'; "
        "from nmtkit.preprocessing import line_encoder; assert line_encoder._words is None"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert native_sources.STALE % "_words" in done.stderr
