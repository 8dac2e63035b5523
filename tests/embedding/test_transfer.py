"""Results of many batches in one array, straight or through stages."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tessearth.embedding import transfer
from tessearth.embedding.transfer import Gatherer

CPU = torch.device("cpu")
DEVICES = [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]
TOTAL = 1000
WIDE = torch.randn(TOTAL, 6, 4, generator=torch.Generator().manual_seed(0))
WHOLE = torch.arange(TOTAL)


def batches(size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, TOTAL, size):
        rows = slice(start, start + size)
        yield WIDE[rows].to(device), WHOLE[rows].to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("size", [1, 7, 300, 999, TOTAL])
@pytest.mark.parametrize("held", [0, 2**30])
def test_every_number_arrives_where_it_belongs(
    device: torch.device, is_staged: bool, size: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "STAGE_BYTES", 1048)  # neither a whole batch nor whole rows
    monkeypatch.setattr(transfer, "HELD_BYTES", held)
    gatherer = Gatherer(TOTAL, device, is_staged=is_staged)
    for parts in batches(size, device):
        gatherer.add(parts)
    wide, whole = gatherer.finish()
    np.testing.assert_array_equal(wide, WIDE)
    np.testing.assert_array_equal(whole, WHOLE)
    assert (str(wide.dtype), str(whole.dtype)) == ("float32", "int64")


@pytest.mark.parametrize("is_staged", [False, True])
def test_rows_that_lie_apart_and_halves_arrive_too(is_staged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STAGE_BYTES", 100)
    turned = torch.randn(8, TOTAL, generator=torch.Generator().manual_seed(1)).bfloat16().T
    gatherer = Gatherer(TOTAL, CPU, is_staged=is_staged)
    gatherer.add((turned[:600],))
    gatherer.add((turned[600:],))
    np.testing.assert_array_equal(gatherer.finish()[0], turned.float())


def test_no_places_still_have_a_width() -> None:
    gatherer = Gatherer(0, CPU)
    gatherer.add((torch.empty(0, 5),))
    assert gatherer.finish()[0].shape == (0, 5)


def test_one_batch_is_not_copied_again() -> None:
    only = torch.randn(4, 3)
    gatherer = Gatherer(4, CPU)
    gatherer.add((only,))
    assert np.shares_memory(gatherer.finish()[0], only.numpy())
