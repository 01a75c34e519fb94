"""Checks whether a compiled module matches the C++ sources of this installation. setup.py also runs this file."""

import hashlib
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent / "native"  #: exists in a checkout, but not in a wheel
STALE = "nmtkit.%s was not compiled from the current sources in nmtkit/native, and is not used: install nmtkit again"


def digest() -> str:
    """Compute a digest of all sources, which setup.py compiles into each module as `SOURCES`."""
    sources = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")]):
        content = path.read_bytes()
        sources.update(f"{path.name} {len(content)} ".encode() + content)
    return sources.hexdigest()[:16]


def is_stale(module: ModuleType) -> bool:
    """Whether a module was compiled from different sources, as after `git pull` in an installed checkout."""
    return FOLDER.is_dir() and getattr(module, "SOURCES", "") != digest()
