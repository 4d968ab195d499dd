"""Where weights come from: GGUF files and folders of safetensors. Only tensors for the device need torch."""
