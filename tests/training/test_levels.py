"""Levels in training: sites move in units of their spacing, and sharpness follows spacing without a jump."""

import dataclasses

import pytest
import torch

from tessearth.encoder import SoftVoronoi
from tessearth.sphere import fibonacci_lattice, mean_chord
from tessearth.training.levels import Levels
from tessearth.training.sites_recipe import SitesRecipe
from tests.training.growing import encoder_of

LATTICE = fibonacci_lattice(60)
DENSE = torch.nn.functional.normalize(torch.tensor([1.0, 0, 0], dtype=torch.float64) + 0.01 * LATTICE, dim=-1)


def levels_of(sites: torch.Tensor, **settings: int) -> tuple[Levels, SoftVoronoi]:
    encoder = encoder_of(sites).double()
    recipe = dataclasses.replace(SitesRecipe(refresh_every=5), **settings)
    return Levels(encoder, recipe), encoder.voronois()[0]


def stir(voronoi: SoftVoronoi, size: float = 0.1) -> None:
    """Move every site by a share of its spacing."""
    with torch.no_grad():
        noise = torch.randn(voronoi.directions.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        voronoi.directions += size * voronoi.spacing[:, None] * noise
        voronoi.constrain_()


def test_a_step_of_the_optimiser_moves_a_site_in_units_of_its_spacing() -> None:
    moved = []
    for sites in (LATTICE, DENSE):
        levels, voronoi = levels_of(sites)
        before = levels.positions()
        with torch.no_grad():
            voronoi.directions += 0.01
        levels.follow_(before)
        moved.append((voronoi.directions - before[0]).detach() / voronoi.spacing[:, None])
    torch.testing.assert_close(moved[0], torch.full_like(moved[0], 0.01))
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-9, atol=1e-9)


def test_nothing_jumps_when_spacing_is_measured_and_it_is_reached_before_the_next_time() -> None:
    levels, voronoi = levels_of(LATTICE)
    stir(voronoi, 0.03)
    places = fibonacci_lattice(200)
    before = voronoi.weights(places)
    ratio = (voronoi.sharpness() * voronoi.spacing.square()).detach()
    levels.refresh_()
    assert torch.equal(voronoi.weights(places), before)
    for _ in range(5):
        levels.follow_(levels.positions())
    wanted = mean_chord(voronoi.positions().detach(), voronoi.config.neighbours)
    torch.testing.assert_close(voronoi.spacing, wanted)
    assert float((voronoi.weights(places) - before).abs().max()) > 1e-4
    torch.testing.assert_close((voronoi.sharpness() * voronoi.spacing.square()).detach(), ratio)


def test_what_changes_at_once_by_more_than_lists_allow_for_is_followed_bit_by_bit() -> None:
    levels, voronoi = levels_of(LATTICE)
    with torch.no_grad():
        voronoi.directions[:20] = DENSE[:20]
    far = voronoi.spacing.clone()
    levels.refresh_()
    for _ in range(5):
        levels.follow_(levels.positions())
    assert float((voronoi.spacing / far).log().abs().max()) == pytest.approx(0.05)
    for _ in range(200):
        levels.refresh_()
        for _ in range(5):
            levels.follow_(levels.positions())
    wanted = mean_chord(voronoi.positions().detach(), voronoi.config.neighbours)
    torch.testing.assert_close(voronoi.spacing, wanted, rtol=1e-6, atol=0)


def test_spacing_is_measured_among_the_sites_that_take_part() -> None:
    levels, voronoi = levels_of(LATTICE)
    with torch.no_grad():
        voronoi.territory[::2] = -torch.inf
    for _ in range(30):
        levels.refresh_()
        for _ in range(5):
            levels.follow_(levels.positions())
    alone = mean_chord(LATTICE[1::2], voronoi.config.neighbours)
    torch.testing.assert_close(voronoi.spacing[1::2], alone, rtol=1e-6, atol=0)
    torch.testing.assert_close(voronoi.spacing[::2], mean_chord(LATTICE, voronoi.config.neighbours)[::2])


def test_sites_that_stay_are_never_measured_again() -> None:
    encoder = encoder_of(LATTICE)
    assert Levels(encoder, SitesRecipe()).is_due(50)
    assert not Levels(encoder, SitesRecipe(), moving=False).is_due(50)
    assert not Levels(encoder, SitesRecipe()).is_due(0)
