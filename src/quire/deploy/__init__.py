"""Several replicas of a server at one address, started and watched by Ray Serve."""
