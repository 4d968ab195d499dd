"""Triton kernels that read and write pages by address. Importing a module here needs triton; `work` alone does not."""
