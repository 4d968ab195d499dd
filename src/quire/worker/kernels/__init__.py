"""Triton kernels that read and write pages by address, and how their work is divided into programs."""
