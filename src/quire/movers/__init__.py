"""Movers: transfer bytes between tiers, and make no decisions."""
