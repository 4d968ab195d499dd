"""Quire: a key-value memory for language models that cannot hang, wastes almost nothing and explains itself."""

__version__ = "0.1.0"
