import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tessearth.errors import ConfigError, DataError, WeightsError
from tessearth.imagery.image_encoders import RandomConvolution, RcfSettings
from tessearth.imagery.image_encoders.rcf import band_moments, draw_patches, standardise

SMALL = RcfSettings(num_filters=7, scales=((3, 1), (2, 2)), num_patches=400)


def some_tiles(number: int = 12, bands: int = 3, size: int = 9, seed: int = 0) -> Tensor:
    """Noise with bands of different brightness and contrast."""
    noise = torch.randn(number, bands, size, size, generator=torch.Generator().manual_seed(seed))
    band = torch.arange(1, bands + 1)[:, None, None]
    return 0.2 * band + 0.05 * band * noise


def slow_features(encoder: RandomConvolution, tiles: Tensor) -> Tensor:
    """Patch by patch, filter by filter, in float64, from the definition."""
    state = {name: tensor.double() for name, tensor in encoder.state_dict().items()}
    threshold = encoder.settings.threshold
    rows = []
    for tile in tiles.double():
        pixels = (tile - state["band_mean"][:, None, None]) / state["band_deviation"][:, None, None]
        row = slow_moments(pixels)
        for number, (patch, pool) in enumerate(encoder.settings.scales):
            side = pixels.shape[-1] // pool
            pooled = torch.stack(
                [
                    torch.stack(
                        [
                            pixels[:, pool * r : pool * (r + 1), pool * c : pool * (c + 1)].mean((1, 2))
                            for c in range(side)
                        ],
                        dim=1,
                    )
                    for r in range(side)
                ],
                dim=1,
            )
            above, below = [], []
            for r, c in itertools.product(range(side - patch + 1), repeat=2):
                square = pooled[:, r : r + patch, c : c + patch].permute(1, 2, 0).reshape(-1)
                response = state[f"filters_{number}"] @ square
                above.append((response - threshold).clamp_min(0))
                below.append((-response - threshold).clamp_min(0))
            row += [torch.stack(above).mean(0), torch.stack(below).mean(0)]
        rows.append(torch.cat(row))
    return torch.stack(rows)


def slow_moments(pixels: Tensor) -> list[Tensor]:
    third = pixels.shape[-1] // 3
    middle = pixels[:, third : pixels.shape[-1] - third, third : pixels.shape[-1] - third]
    parts = [part.flatten(1) for part in (pixels, middle)]
    return [moment for part in parts for moment in (part.mean(1), part.std(1, correction=0))]


@pytest.mark.parametrize("centring", ["population", "patch"])
def test_features_match_patch_by_patch_arithmetic(centring: str) -> None:
    settings = RcfSettings(num_filters=7, scales=((3, 1), (2, 2)), num_patches=400, centring=centring)  # type: ignore[arg-type]
    encoder = RandomConvolution.fit(some_tiles(), settings, seed=3)
    fresh = some_tiles(seed=1)
    torch.testing.assert_close(encoder.encode(fresh).double(), slow_features(encoder, fresh), atol=1e-5, rtol=0)


def test_filters_are_whitened_patches_of_the_tiles() -> None:
    """With one tile the size of a patch there is one patch; among two, each filter must answer to one of them."""
    tiles = some_tiles(number=2, size=3)
    settings = RcfSettings(num_filters=30, scales=((3, 1),), num_patches=200, whitening=0.3, moments=False)
    encoder = RandomConvolution.fit(tiles, settings, seed=0)
    pixels = tiles.double().movedim(1, 0).flatten(1)
    scaled = (tiles.double() - pixels.mean(1)[:, None, None]) / pixels.std(1, correction=0)[:, None, None]
    patches = scaled.permute(0, 2, 3, 1).flatten(1)  # (2, 27)
    banks = []
    for share in torch.arange(201) / 200:  # how often the first tile was drawn is not known from outside
        covariance = share * torch.outer(patches[0], patches[0]) + (1 - share) * torch.outer(patches[1], patches[1])
        variance, directions = torch.linalg.eigh(covariance)
        whitening = (directions * (variance.clamp_min(0) + 0.3 * variance.mean()).rsqrt()) @ directions.T
        whitened = torch.nn.functional.normalize(patches @ whitening, dim=1)
        banks.append(whitened @ whitening)
    filters = encoder.state_dict()["filters_0"].double()
    misses = [torch.cdist(filters, bank).min(1).values.max().item() for bank in banks]
    assert min(misses) < 1e-4


def test_whitening_evens_out_the_directions_of_patches() -> None:
    """Filters are unit vectors among white patches, so responses to the source have about unit variance."""
    tiles = some_tiles(number=200)
    tiles[:, 1] = tiles[:, 0] + 0.05 * tiles[:, 1]  # two bands that all but agree
    encoder = RandomConvolution.fit(tiles, RcfSettings(num_filters=64, whitening=1e-4, num_patches=20_000), seed=0)
    state = encoder.state_dict()
    pixels = (tiles - state["band_mean"][:, None, None]) / state["band_deviation"][:, None, None]
    bank = state["filters_0"].unflatten(1, (3, 3, 3)).permute(0, 3, 1, 2)
    deviation = torch.nn.functional.conv2d(pixels, bank).std((0, 2, 3))
    assert deviation.min() > 0.8
    assert deviation.max() < 1.2


def test_same_seed_same_filters_and_another_seed_others() -> None:
    first, again, other = (RandomConvolution.fit(some_tiles(), SMALL, seed=seed) for seed in (5, 5, 6))
    assert first.describe() == again.describe()
    assert first.describe()["sha256"] != other.describe()["sha256"]
    assert torch.equal(first.encode(some_tiles()), again.encode(some_tiles()))


@pytest.mark.parametrize("together", [1, 2, 3, 8, 13])
def test_a_tile_has_the_same_bytes_in_any_batch(together: int) -> None:
    encoder = RandomConvolution.fit(some_tiles(), RcfSettings(num_filters=48, num_patches=400), seed=0)
    tiles = some_tiles(number=21, seed=2)
    split = torch.cat([encoder.encode(batch) for batch in tiles.split(together)])
    assert torch.equal(split, encoder.encode(tiles))
    order = torch.randperm(21, generator=torch.Generator().manual_seed(0))
    assert torch.equal(encoder.encode(tiles[order]), split[order])


def test_width_counts_moments_and_both_signs_of_every_scale() -> None:
    with_moments = RandomConvolution.fit(some_tiles(bands=2), SMALL, seed=0)
    assert with_moments.width == 4 * 2 + 2 * 7 * 2 == with_moments.encode(some_tiles(bands=2)).shape[1]
    bare = RcfSettings(num_filters=7, scales=((3, 1),), num_patches=400, moments=False)
    assert RandomConvolution.fit(some_tiles(), bare, seed=0).width == 14


def test_an_empty_batch_gives_no_rows() -> None:
    encoder = RandomConvolution.fit(some_tiles(), SMALL, seed=0)
    assert encoder.encode(some_tiles()[:0]).shape == (0, encoder.width)


def test_missing_pixels_count_as_their_bands_mean() -> None:
    tiles = some_tiles()
    tiles[3, 1, 2:4] = torch.nan
    encoder = RandomConvolution.fit(tiles, SMALL, seed=0)
    filled = tiles.clone()
    filled[3, 1, 2:4] = encoder.state_dict()["band_mean"][1]
    assert encoder.encode(tiles).isfinite().all()
    torch.testing.assert_close(encoder.encode(tiles), encoder.encode(filled), atol=1e-5, rtol=0)


def test_constant_infinite_and_wild_tiles_have_finite_features() -> None:
    encoder = RandomConvolution.fit(some_tiles(), SMALL, seed=0)
    strange = torch.stack([torch.full((3, 9, 9), value) for value in (0.0, 0.4, torch.inf, -torch.inf, -9999.0, 1e30)])
    assert encoder.encode(strange).isfinite().all()


def test_a_constant_band_neither_stops_fitting_nor_speaks() -> None:
    tiles = some_tiles()
    tiles[:, 2] = 0.7
    encoder = RandomConvolution.fit(tiles, SMALL, seed=0)
    assert encoder.encode(tiles).isfinite().all()
    assert encoder.state_dict()["filters_0"].unflatten(1, (9, 3))[..., 2].abs().max() < 1e-4


def test_half_precision_stays_near() -> None:
    tiles = some_tiles(number=40)
    exact = RandomConvolution.fit(tiles, SMALL, seed=0)
    half = RandomConvolution(
        RcfSettings(num_filters=7, scales=((3, 1), (2, 2)), num_patches=400, precision="float16"), 0, exact.state_dict()
    )
    wanted, given = exact.encode(tiles), half.encode(tiles)
    assert given.dtype == torch.float32
    assert not torch.equal(given, wanted)
    assert ((given - wanted).abs().mean(0) / wanted.std(0)).max() < 0.01


def test_saved_encoder_reads_back_the_same(tmp_path: Path) -> None:
    encoder = RandomConvolution.fit(some_tiles(), SMALL, seed=9)
    encoder.save(tmp_path / "filters.safetensors")
    again = RandomConvolution.load(tmp_path / "filters.safetensors")
    assert again.describe() == encoder.describe()
    assert again.settings == encoder.settings
    assert torch.equal(again.encode(some_tiles()), encoder.encode(some_tiles()))


def test_description_is_json_and_knows_the_seed() -> None:
    described = json.loads(json.dumps(RandomConvolution.fit(some_tiles(), SMALL, seed=9).describe()))
    assert (described["name"], described["seed"], described["bands"]) == ("rcf", 9, 3)
    assert described["settings"]["scales"] == [[3, 1], [2, 2]]


def test_wrong_tiles_are_named() -> None:
    encoder = RandomConvolution.fit(some_tiles(), SMALL, seed=0)
    with pytest.raises(DataError, match="tiles have 4 bands, but the image encoder rcf reads 3"):
        encoder.encode(some_tiles(bands=4))
    with pytest.raises(DataError, match="2 x 2 pixels are too small for patches of 3"):
        encoder.encode(torch.zeros(1, 3, 2, 2))
    with pytest.raises(DataError, match=r"shape \(3, 9, 9\)"):
        encoder.encode(some_tiles()[0])
    with pytest.raises(DataError, match="of at least one"):
        RandomConvolution.fit(some_tiles()[:0], SMALL, seed=0)
    with pytest.raises(DataError, match="do not vary at all"):
        RandomConvolution.fit(torch.full((4, 3, 9, 9), 0.3), SMALL, seed=0)


def test_too_few_lively_patches_are_counted() -> None:
    """Tiles that are almost all missing stand at the mean, and no filter can be made of the mean."""
    tiles = torch.full((400, 1, 3, 3), torch.nan)
    tiles[:2] = torch.tensor([1.0, -1.0])[:, None, None, None]
    settings = RcfSettings(num_filters=350, scales=((3, 1),), num_patches=2000)
    with pytest.raises(DataError, match=r"only \d+ of 2000 patches differ from the mean, fewer than the 350 filters"):
        RandomConvolution.fit(tiles, settings, seed=0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"scales": ()}, "at least one"),
        ({"scales": ((0, 1),)}, "at least 1"),
        ({"num_filters": 0}, "0 filters"),
        ({"num_filters": 10, "num_patches": 5}, "10 filters cannot be drawn from 5 patches"),
        ({"whitening": 0.0}, "whitening 0.0"),
        ({"threshold": -1.0}, "threshold is -1.0"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RcfSettings(**wrong)  # type: ignore[arg-type]


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    save_file({"filters_0": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="holds no random convolutional features"):
        RandomConvolution.load(tmp_path / "other.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(WeightsError, match="is damaged"):
        RandomConvolution.load(tmp_path / "cut.safetensors")
    encoder = RandomConvolution.fit(some_tiles(), SMALL, seed=0)
    record = {"rcf": json.dumps({"settings": encoder.describe()["settings"], "seed": 0})}
    tensors = encoder.state_dict()
    save_file({**tensors, "filters_1": torch.zeros(7, 5)}, tmp_path / "shape.safetensors", record)
    with pytest.raises(WeightsError, match=r"filters_1 has shape \(7, 5\), its model needs \(7, 12\)"):
        RandomConvolution.load(tmp_path / "shape.safetensors")
    tensors.pop("filters_0")
    save_file(dict(tensors), tmp_path / "lack.safetensors", record)
    with pytest.raises(WeightsError, match="filters_0"):
        RandomConvolution.load(tmp_path / "lack.safetensors")


def test_large_tiles_are_encoded_fewer_at_a_time_and_small_memory_changes_nothing() -> None:
    encoder = RandomConvolution.fit(some_tiles(), SMALL, seed=0)
    assert encoder.chunk_size(torch.zeros(1, 3, 24, 24)) == 8
    assert encoder.chunk_size(torch.zeros(1, 3, 48, 48)) == 2
    assert encoder.chunk_size(torch.zeros(1, 3, 256, 256)) == 1
    large = some_tiles(number=3, size=50)
    torch.testing.assert_close(encoder.encode(large).double(), slow_features(encoder, large), atol=1e-5, rtol=0)


def test_every_tile_is_drawn_from() -> None:
    """More tiles than are looked at together, one of them unlike the rest: some filter must come from it."""
    tiles = some_tiles(number=130, size=3)
    moments = band_moments(tiles)
    generator = torch.Generator().manual_seed(0)
    patches = draw_patches(tiles, moments, (3, 1), 4000, generator)
    every = standardise(tiles, *moments).permute(0, 2, 3, 1).flatten(1).double()
    distance = torch.cdist(patches, every)
    assert distance.min(1).values.max() < 1e-6
    assert len(distance.argmin(1).unique()) == 130


def test_features_are_those_of_full_float32_whatever_products_the_caller_allows() -> None:
    encoder = RandomConvolution.fit(some_tiles(), RcfSettings(num_filters=48, num_patches=400), seed=0)
    expected = encoder.encode(some_tiles())
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(encoder.encode(some_tiles()), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
