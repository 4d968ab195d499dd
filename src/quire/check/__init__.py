"""Random and exhaustive runs of the real engine, audited after every step, and the bugs it must find."""
