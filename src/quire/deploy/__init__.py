"""Several replicas of a server behind one address, started and watched by Ray Serve."""
