"""Which Quire this is; the package is built with it too."""

__version__ = "0.1.0"
