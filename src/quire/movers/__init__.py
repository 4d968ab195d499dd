"""Bytes between tiers: moves, and decides nothing."""
