"""Tiers: decides which records are kept outside the device, and when they are transferred. Moves no bytes itself."""
