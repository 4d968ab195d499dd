"""How a model is run: one frozen value for the command line, the library, the engine's process and the worker."""
