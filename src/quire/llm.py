"""`LLM`: text in, text out, on any model that Quire can run."""
