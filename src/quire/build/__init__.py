"""Composes an engine: the plan, the model, the runner, tiers and peers."""
