"""The version, on the lowest floor: what is written into files and shown by --version must not import the package."""

__version__ = "0.1.0"
