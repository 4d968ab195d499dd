"""One step after another: the loop, streams, lifecycle. No torch."""
