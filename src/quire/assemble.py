"""Builds an engine from a configuration: the one module that knows every part."""
