"""Reads weights from GGUF files, which needs no torch, and from folders of safetensors, packed or not."""
