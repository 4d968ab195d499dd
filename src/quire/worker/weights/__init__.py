"""Where weights come from: GGUF files and folders of safetensors. Reading them needs no torch."""
