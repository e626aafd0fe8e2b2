"""The version of polytask."""

__version__ = "0.1.0"
