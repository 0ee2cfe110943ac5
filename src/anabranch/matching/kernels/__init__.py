"""Compiled kernels of the matching index, and the layout of the memory they share."""
