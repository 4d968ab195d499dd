"""Tries to break promises: random runs with every book audited, every schedule of small systems, and planted bugs."""
