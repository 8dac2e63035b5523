"""The spacing of points against all distances."""

import pytest
import torch

from tessearth.sphere import fibonacci_lattice, mean_chord


def clumps() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(12, 3, dtype=torch.float64, generator=generator), dim=-1)
    spread = torch.logspace(-5, 0, 12, dtype=torch.float64)[:, None, None]
    return torch.nn.functional.normalize(
        centres[:, None] + spread * torch.randn(12, 60, 3, dtype=torch.float64, generator=generator), dim=-1
    ).flatten(0, 1)


@pytest.mark.parametrize(
    "points",
    [fibonacci_lattice(3000), clumps(), fibonacci_lattice(7), clumps()[50:61]],
    ids=["lattice", "clumps", "few", "uneven"],
)
def test_the_mean_chord_is_that_to_the_nearest_of_all_points(points: torch.Tensor) -> None:
    chords = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").sort(-1).values[:, 1:7]
    torch.testing.assert_close(mean_chord(points, 6), chords.mean(-1))
    shuffled = torch.randperm(len(points), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mean_chord(points[shuffled], 6), chords.mean(-1)[shuffled])
