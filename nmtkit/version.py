"""The version, in a module of its own: data files and `--version` need it without importing the package."""

__version__ = "0.1.0"
