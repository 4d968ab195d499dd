"""Reads weights from GGUF files and folders of safetensors; only `loading` and `safetensors` need torch."""
