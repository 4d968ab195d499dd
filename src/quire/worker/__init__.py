"""Turns a step into tokens, on torch: arena, tables, attention, models, sampling."""
