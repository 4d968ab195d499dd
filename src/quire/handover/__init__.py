"""Prompts that one engine computes and another continues."""
