"""The HTTP API: an engine in a separate process, and a process that implements OpenAI's protocol."""
