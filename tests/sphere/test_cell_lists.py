"""Cells of the sphere along a curve, lists in adaptive cells, and the nearest neighbours that they find."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessearth.packages import has_kernels
from tessearth.sphere import (
    DEPTH,
    Block,
    CubeCells,
    Verdict,
    fibonacci_lattice,
    mean_chord,
    refine,
    refine_by_kernels,
)
from tessearth.sphere.neighbours import _NeighbourRule

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernels = pytest.mark.skipif(
    not has_kernels(DEVICE), reason="kernels need a GPU, or Triton and TRITON_INTERPRET=1"
)

POLES_AND_SEAM = torch.tensor([(0, 0, 1), (0, 0, -1), (-1, 0, 0), (-1, 1e-9, 0), (-1, -1e-9, 0), (1, 1, 1)])


def random_points(count: int, spread: float = math.inf, seed: int = 0) -> Tensor:
    """All over the sphere, or within about `spread` of one of its points."""
    noise = torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return normalize(noise if spread == math.inf else torch.tensor([0.3, -0.8, 0.5]) + spread * noise, dim=-1)


@pytest.mark.parametrize("depth", [0, 1, 5, DEPTH])
def test_keys_number_the_cells_and_turn_back(depth: int) -> None:
    cells = CubeCells(2**depth)
    numbers = torch.linspace(0, cells.count - 1, min(cells.count, 5000), dtype=torch.float64).long().unique()
    keys = cells.keys(numbers)
    assert torch.equal(cells.of_keys(keys), numbers)
    assert int(keys.min()) >= 0
    assert int(keys.max()) < cells.count
    assert len(keys.unique()) == len(numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cell_of_any_depth_holds_the_keys_of_its_quarters(dtype: torch.dtype) -> None:
    xyz = torch.cat((random_points(500), normalize(POLES_AND_SEAM.double(), dim=-1))).to(dtype)
    keys = [cells.keys(cells.find(xyz)) for cells in (CubeCells(2**depth) for depth in (3, 4, DEPTH))]
    assert torch.equal(keys[1] >> 2, keys[0])
    assert torch.equal(keys[2] >> 2 * (DEPTH - 3), keys[0])


def test_refined_cells_cover_the_sphere_and_list_what_the_rule_keeps() -> None:
    points = torch.cat((random_points(300), random_points(300, 1e-3, seed=1)))

    def near(block: Block) -> Verdict:
        gap = (points[block.item.long()] - block.centres[block.cell]).norm(dim=-1)
        kept = gap <= 3 * block.radii[block.cell]
        return Verdict(block.tally(kept) <= 20, kept, kept)

    lists = refine(torch.arange(600), near)
    assert int(lists.keys[0]) == 0
    assert bool((lists.keys.diff() > 0).all())
    assert int(lists.lengths.max()) <= 20
    for point, cell in enumerate(lists.find(points).tolist()):
        listed = lists.sites[lists.starts[cell] : lists.starts[cell + 1]]
        assert point in listed
        assert bool((listed.diff() > 0).all())


def test_nothing_to_list_gives_six_empty_faces() -> None:
    def nothing(block: Block) -> Verdict:
        return Verdict(block.lengths == 0, block.item >= 0, block.item >= 0)

    lists = refine(torch.empty(0, dtype=torch.long), nothing)
    assert lists.starts.tolist() == [0] * 7
    assert len(lists.find(random_points(20)).unique()) > 1


def brute_force(points: Tensor, neighbours: int) -> Tensor:
    """The mean chord by all distances."""
    chords = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return chords.sort(-1).values[:, 1 : neighbours + 1].mean(-1)


POINTS = {
    "everywhere": random_points(1000),
    "lattice": fibonacci_lattice(1000),
    "crowds": torch.cat([random_points(150, 10.0**-i, seed=i) for i in range(7)]),
    "coincident": torch.cat((random_points(1).repeat(200, 1), random_points(500))),
    "few": random_points(7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POINTS)
def test_mean_chords_are_those_by_all_distances(name: str, dtype: torch.dtype) -> None:
    points = POINTS[name].to(dtype)
    for neighbours in (1, 6):
        torch.testing.assert_close(mean_chord(points, neighbours), brute_force(points, neighbours), rtol=1e-6, atol=0)


@needs_kernels
@pytest.mark.parametrize(("name", "where"), [("crowds", -1), ("coincident", 0)])
def test_kernels_find_neighbours_as_the_plain_path(name: str, where: int) -> None:
    points = POINTS[name]
    within = (2, int(CubeCells(4).keys(CubeCells(4).find(points[where][None]))))
    lists = []
    for device in ("cpu", DEVICE):
        there, everyone = _NeighbourRule(points.to(device), 6), torch.arange(len(points), device=device)
        by_kernels = device == DEVICE
        made = (
            refine_by_kernels(everyone, there.judge, within=within)
            if by_kernels
            else refine(everyone, there, within=within)
        )
        lists.append([part.cpu() for part in made])
    assert len(lists[0][0]) > 1
    assert all(torch.equal(one, two) for one, two in zip(*lists, strict=True))


@pytest.mark.parametrize("count", [3, 7, 12, 13])
def test_few_points_are_all_each_others_neighbours(count: int) -> None:
    for seed in range(5):
        points = random_points(count, seed=seed)
        torch.testing.assert_close(mean_chord(points, 6), brute_force(points, min(6, count - 1)))


def test_points_that_do_not_live_are_nobodys_neighbours() -> None:
    points, alive = random_points(400), torch.arange(400) % 3 > 0
    points[~alive] = math.nan
    chords = mean_chord(points, 6, alive)
    torch.testing.assert_close(chords[alive], brute_force(points[alive], 6))
    assert bool((chords[~alive] == 2).all())


@pytest.mark.parametrize(("count", "expected"), [(1, [2.0]), (2, [1.0, 1.0])])
def test_a_lonely_point_is_the_largest_chord_away_from_everything(count: int, expected: list[float]) -> None:
    points = torch.tensor([(1.0, 0, 0), (0.5, math.sqrt(0.75), 0)])[:count]
    torch.testing.assert_close(mean_chord(points, 6), torch.tensor(expected))
