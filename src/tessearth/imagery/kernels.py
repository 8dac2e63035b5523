"""Whether kernels in Triton run here, which comes with CUDA builds of PyTorch; without it the plain paths are taken."""

import os
import threading

import torch

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = tl = None

__all__ = ["is_available", "launching", "tl", "triton"]

launching = threading.Lock()
"""A kernel is compiled at its first launch, which threads do one after another."""


def is_available(device: torch.device) -> bool:
    """Whether kernels run there: on a GPU, or anywhere under Triton's interpreter."""
    return triton is not None and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")
