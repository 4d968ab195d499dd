"""The engine loop: steps, streams of outputs, the lifecycle of requests. No torch."""
