"""Answers about a running engine: why a request waits, what uses the memory; and reasons in English."""
