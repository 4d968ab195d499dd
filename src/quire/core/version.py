"""Quire's version, which the package build reads too."""

__version__ = "0.1.0"
