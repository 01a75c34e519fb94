"""The version, in a separate module, because data files and `--version` need it without importing the package."""

__version__ = "0.1.0"
