"""The version of denserk, which files that it writes record."""

__version__ = "0.2.0"
