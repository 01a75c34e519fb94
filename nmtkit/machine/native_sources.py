"""Tells whether a compiled module belongs to the C++ sources of this installation. setup.py runs this file too."""

import hashlib
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent / "native"  #: in a checkout; a wheel does not have it
STALE = "nmtkit.%s was compiled from other sources than those in nmtkit/native, and is not used: install nmtkit again"


def digest() -> str:
    """A digest of all sources, which setup.py compiles into each module as `SOURCES`."""
    sources = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp")]):
        content = path.read_bytes()
        sources.update(f"{path.name} {len(content)} ".encode() + content)
    return sources.hexdigest()[:16]


def is_stale(module: ModuleType) -> bool:
    """Whether the module was compiled from other sources, as after a `git pull` in a checkout that is installed."""
    return FOLDER.is_dir() and getattr(module, "SOURCES", "") != digest()
