"""Backends that compute attention and recurrences over pages, and what a step means to each."""
