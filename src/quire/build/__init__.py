"""Composes an engine in steps, each of which returns a finished object: plan, model, tiers, runner, engine."""
