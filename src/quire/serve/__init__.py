"""The HTTP API: an engine in a process of its own, and a process that speaks OpenAI's protocol."""
