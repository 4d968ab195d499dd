"""Models that can be had without a hub, fetched and converted once."""
