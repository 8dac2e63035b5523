import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.recipe import ViewSettings
from tessearth.imagery.views import augment, blur, centre_crop, crop, flip, quarter_turn, view_parameters

EVERYTHING = ViewSettings(blur_share=1.0, blur_pixels=(0.3, 2.0))


def some_tiles(number: int = 6, size: int = 16, height: int | None = None) -> Tensor:
    return torch.rand(number, 3, height or size, size, generator=torch.Generator().manual_seed(0))


def yes(number: int = 6) -> Tensor:
    return torch.ones(number, dtype=torch.bool)


def test_flipping_twice_is_doing_nothing() -> None:
    tiles, some = some_tiles(), torch.tensor([True, False] * 3)
    assert torch.equal(flip(flip(tiles, some, ~some), some, ~some), tiles)
    assert torch.equal(flip(tiles, yes(), ~yes()), tiles.flip(3))
    assert torch.equal(flip(tiles, ~yes(), yes()), tiles.flip(2))
    assert torch.equal(flip(tiles, some, ~yes())[1], tiles[1])


def test_four_quarter_turns_are_doing_nothing() -> None:
    tiles, one = some_tiles(), torch.ones(6, dtype=torch.long)
    turned = tiles
    for _ in range(4):
        turned = quarter_turn(turned, one)
    assert torch.equal(turned, tiles)


def test_each_tile_makes_its_own_quarter_turns() -> None:
    tiles = some_tiles(number=4)
    turned = quarter_turn(tiles, torch.arange(4))
    for turns in range(4):
        assert torch.equal(turned[turns], torch.rot90(tiles[turns], turns, (1, 2)))


@pytest.mark.parametrize("pixels", [0.2, 0.8, 2.5, 20.0])
def test_blur_keeps_the_mean_and_lowers_the_contrast(pixels: float) -> None:
    tiles = some_tiles().double()
    blurred = blur(tiles, torch.full((6,), pixels), reach=math.ceil(3 * pixels))
    torch.testing.assert_close(blurred.mean((2, 3)), tiles.mean((2, 3)), atol=1e-12, rtol=0)
    assert (blurred.std((2, 3)) < tiles.std((2, 3))).all()


def test_blur_spreads_a_point_as_a_gaussian() -> None:
    point = torch.zeros(1, 1, 31, 31, dtype=torch.float64)
    point[0, 0, 15, 15] = 1.0
    spread = blur(point, torch.tensor([2.0]), reach=15)[0, 0]
    distance = torch.arange(31, dtype=torch.float64) - 15
    assert spread.sum(0) @ distance**2 == pytest.approx(4.0, rel=1e-3)
    torch.testing.assert_close(spread, spread.T)


def test_no_blur_leaves_a_tile_as_it_is() -> None:
    tiles = some_tiles(number=2)
    assert torch.equal(blur(tiles, torch.tensor([0.0, 1.0]), reach=3)[0], tiles[0])


def test_crops_are_windows_of_the_tile_and_reach_every_corner() -> None:
    tiles = torch.arange(30.0).view(1, 1, 5, 6).expand(400, 1, 5, 6)
    shares = torch.rand(2, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = set()
    for window in crop(tiles, 3, shares[0], shares[1]):
        row, column = divmod(int(window[0, 0, 0]), 6)
        assert torch.equal(window[0], tiles[0, 0, row : row + 3, column : column + 3])
        found.add((row, column))
    assert found == {(row, column) for row in range(3) for column in range(4)}
    edge = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert crop(tiles[:2], 3, edge, edge)[:, 0, 0, 0].tolist() == [0.0, 15.0]


def test_centre_crop_is_the_middle() -> None:
    tiles = some_tiles(size=8)
    assert torch.equal(centre_crop(tiles, 4), tiles[..., 2:6, 2:6])
    assert torch.equal(centre_crop(tiles, 3), tiles[..., 2:5, 2:5])
    assert torch.equal(centre_crop(tiles, 8), tiles)


@pytest.mark.parametrize("settings", [ViewSettings(), EVERYTHING])
@pytest.mark.parametrize("together", [1, 2, 4])
def test_a_place_has_the_same_view_in_any_batch(settings: ViewSettings, together: int) -> None:
    tiles = some_tiles()
    whole = augment(tiles, indices=range(100, 106), view=2, seed=7, size=12, settings=settings)
    parts = [
        augment(
            tiles[start : start + together],
            indices=range(100 + start, min(100 + start + together, 106)),
            view=2,
            seed=7,
            size=12,
            settings=settings,
        )
        for start in range(0, 6, together)
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert whole.shape == (6, 3, 12, 12)
    order = [3, 0, 5]
    chosen = augment(tiles[order], indices=[103, 100, 105], view=2, seed=7, size=12, settings=settings)
    assert torch.equal(chosen, whole[order])


def test_a_missing_pixel_in_one_tile_leaves_the_others_alone() -> None:
    tiles = some_tiles()
    holed = tiles.clone()
    holed[2, :, 4, 4] = torch.nan
    wanted, given = (augment(t, indices=range(6), view=1, seed=0, settings=EVERYTHING) for t in (tiles, holed))
    others = [0, 1, 3, 4, 5]
    assert torch.equal(given[others], wanted[others])


def test_seed_place_and_view_each_change_the_draw() -> None:
    draws = [
        view_parameters(seed, [place], view).top.item()
        for seed, place, view in ((0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2), (1, 1, 1), (0, 1, 2), (0, 2, 1))
    ]
    assert len(set(draws)) == len(draws)
    assert view_parameters(3, [8], 1).top == view_parameters(3, np.array([7, 8]), 1).top[1]


def test_draws_are_even_and_do_not_go_together() -> None:
    parameters = view_parameters(0, range(20_000), 1, ViewSettings(rotation="quarter", blur_share=0.25))
    assert parameters.top.mean() == pytest.approx(0.5, abs=0.01)
    assert parameters.top.std() == pytest.approx(12**-0.5, abs=0.01)
    assert (parameters.top.min(), parameters.top.max()) == (pytest.approx(0, abs=1e-3), pytest.approx(1, abs=1e-3))
    assert torch.bincount(parameters.turns).tolist() == pytest.approx([5000] * 4, rel=0.05)
    assert parameters.mirrored.double().mean() == pytest.approx(0.5, abs=0.02)
    assert (parameters.blur > 0).double().mean() == pytest.approx(0.25, abs=0.02)
    assert parameters.blur.max() <= 1.0
    rows = torch.stack([values.double() for values in parameters])
    together = torch.corrcoef(rows) - torch.eye(len(rows))
    assert together.abs().max() < 0.03
    neighbours = torch.corrcoef(torch.stack((parameters.top[:-1], parameters.top[1:])))[0, 1]
    assert abs(neighbours) < 0.03


def test_what_is_switched_off_does_not_happen() -> None:
    tiles = some_tiles()
    nothing = ViewSettings(flip=False, rotation="none", blur_share=0.0)
    assert torch.equal(augment(tiles, indices=range(6), view=1, seed=0, settings=nothing), tiles)
    exact = ViewSettings(blur_share=0.0)
    seen = augment(tiles, indices=range(6), view=1, seed=0, settings=exact)
    assert not torch.equal(seen, tiles)
    assert torch.equal(seen.flatten(2).sort().values, tiles.flatten(2).sort().values)


def test_what_cannot_be_done_is_named() -> None:
    with pytest.raises(DataError, match="16 x 16 pixels cannot be cropped to 17"):
        centre_crop(some_tiles(), 17)
    with pytest.raises(DataError, match="cannot be cropped to 0"):
        augment(some_tiles(), indices=range(6), view=1, seed=0, size=0)
    with pytest.raises(DataError, match="12 x 16 pixels cannot be turned"):
        augment(some_tiles(height=12), indices=range(6), view=1, seed=0)
    with pytest.raises(DataError, match="5 indices were given for 6 tiles"):
        augment(some_tiles(), indices=range(5), view=1, seed=0)
    with pytest.raises(ConfigError, match="blur_share is 2"):
        ViewSettings(blur_share=2.0)
    with pytest.raises(ConfigError, match="blur_pixels is"):
        ViewSettings(blur_pixels=(2.0, 1.0))
