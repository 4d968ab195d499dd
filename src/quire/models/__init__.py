"""From a model's configuration to its ModelShape: every layer and what it remembers."""
