"""C for CPUs: products of packed weights, and layers of llama's sort, several threads at a time.

    *.c ── compile.py, when Quire is installed ──▶ quire-native.so ── library.py ──▶ ctypes

It needs a C compiler when Quire is installed, and nothing else. Without it torch's products are used, which are slower.
"""
