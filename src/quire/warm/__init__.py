"""Warm work: an idle engine computes prompts that are expected next."""
