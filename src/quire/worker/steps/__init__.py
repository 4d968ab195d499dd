"""Runs steps: the runners, recorded decode steps, and the start on a GPU."""
