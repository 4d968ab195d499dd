"""Models that are available without a hub, fetched and converted once."""
