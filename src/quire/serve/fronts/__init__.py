"""Several processes that speak HTTP on one port: the fronts, and the hub that they share."""
