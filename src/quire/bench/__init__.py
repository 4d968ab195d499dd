"""Benches that need nothing but this package: kernels, decode steps and whole requests, with random weights."""
