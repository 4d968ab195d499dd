"""Questions that people ask a plan: what fits, what would change it, what a workload needs, how devices compare."""
