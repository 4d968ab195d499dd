"""Recordings of an engine: everything it was given, written down and played back."""
