"""What the inspector shows: an engine's state as one document, and the differences between two documents."""
