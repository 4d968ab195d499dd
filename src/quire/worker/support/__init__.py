"""Checks whether a model and a processor can run here, before they are used."""
