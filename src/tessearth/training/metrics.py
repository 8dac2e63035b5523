"""Retrieval, the metric of training on held-out places."""

from typing import NamedTuple

import torch
from torch import Tensor

TOP = (1, 5, 10)
ROWS_AT_ONCE = 1024


class Retrieval(NamedTuple):
    """The share of queries whose right answer is among the nearest 1, 5, 10."""

    image_to_place: dict[int, float]
    place_to_image: dict[int, float]


@torch.no_grad()
def retrieval(location: Tensor, image: Tensor) -> Retrieval:
    """Find each image's place among all places, and each place's image among all images; unit rows, (N, D) each."""
    return Retrieval(image_to_place=_shares(image, location), place_to_image=_shares(location, image))


def _shares(queries: Tensor, answers: Tensor) -> dict[int, float]:
    """The share of queries whose own answer is beaten by fewer than 1, 5, 10 others.

    A tie counts as beaten: an encoder that gives every place the same embedding finds nothing.
    """
    starts = range(0, len(queries), ROWS_AT_ONCE)
    ranks = torch.cat([_ranks(queries[first : first + ROWS_AT_ONCE], answers, first) for first in starts])
    return {k: float((ranks < k).double().mean()) for k in TOP}


def _ranks(queries: Tensor, answers: Tensor, first: int) -> Tensor:
    similarity = queries @ answers.T
    own = similarity.diagonal(first)[:, None]
    return (similarity >= own).sum(-1) - 1
