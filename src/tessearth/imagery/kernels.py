"""Triton, or None where it is not installed, for modules of kernels."""

import threading

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = tl = None

__all__ = ["launching", "tl", "triton"]

launching = threading.Lock()
"""A kernel is compiled at its first launch, which threads do one after another."""
