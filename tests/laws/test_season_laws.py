"""Seasons: the year is a circle, its twelve months average to it, and every way of embedding agrees."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

from tessearth import Embedder, LocationFeatures
from tessearth.cli.app import app as cli
from tessearth.embedding.describe import describe_model
from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.voronoi import mix_season
from tessearth.errors import ConfigError, CoordinateError, TessearthError
from tessearth.seasons import share_of_dates, share_of_months
from tessearth.sphere.geometry import fibonacci_lattice
from tests.conftest import tiny_encoder

SPACED: dict[str, Any] = {"logits": "chord", "sharpness": "spacing", "sharpness_range": (0.5, 8.0), "harmonics": 2}
KINDS: dict[str, dict[str, Any]] = {
    "one tessellation": {"tessellations": (TessellationConfig(num_sites=600, site_dim=6, harmonics=1),)},
    "levels of which one knows seasons": {
        "tessellations": (
            TessellationConfig(num_sites=200, site_dim=5, sharpness=15.0, logits="chord"),
            TessellationConfig(num_sites=1500, site_dim=4, background=-6.0, **SPACED),
        ),
        "num_tokens": 0,
    },
    "levels ending in units": {
        "tessellations": (
            TessellationConfig(num_sites=300, site_dim=5, sharpness=15.0, logits="chord", harmonics=3),
            TessellationConfig(num_sites=1500, site_dim=4, **SPACED),
        ),
        "num_tokens": 0,
        "num_blocks": 0,
        "hidden_dim": 18,
        "exit": "units",
        "leak": 0.3,
    },
}
PLACES = np.concatenate([np.random.default_rng(0).uniform((-80, -180), (80, 180), (300, 2)), [[48.86, 2.35]] * 30])
SEASONS = np.random.default_rng(1).uniform(0, 1, len(PLACES))


def build(kind: str) -> SphericalVoronoiEncoder:
    return tiny_encoder(**KINDS[kind]).requires_grad_(False)


def plainly(encoder: SphericalVoronoiEncoder, places: np.ndarray, season: np.ndarray) -> np.ndarray:
    return encoder(torch.from_numpy(places), torch.from_numpy(season)).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_a_year_later_everything_is_the_same(kind: str) -> None:
    encoder = build(kind)
    now = plainly(encoder, PLACES, SEASONS)
    np.testing.assert_allclose(plainly(encoder, PLACES, SEASONS + 1), now, atol=1e-12)
    np.testing.assert_allclose(plainly(encoder, PLACES, SEASONS - 3), now, atol=1e-12)
    assert np.abs(plainly(encoder, PLACES, (SEASONS + 0.5) % 1) - now).max() > 0.1


@pytest.mark.parametrize("harmonics", range(6))
def test_the_mean_of_the_months_is_the_year(harmonics: int) -> None:
    numbers = torch.randn(7, 4 * (1 + 2 * harmonics), dtype=torch.float64)
    months = [
        mix_season(numbers, 4, torch.full((7,), t, dtype=torch.float64)) for t in share_of_months(np.arange(1, 13))
    ]
    torch.testing.assert_close(torch.stack(months).mean(0), mix_season(numbers, 4, None), rtol=0, atol=1e-12)


def test_no_harmonics_are_the_model_without_seasons_to_the_bit() -> None:
    plain = TessellationConfig(num_sites=30, site_dim=6)
    one, other = (
        SphericalVoronoiEncoder(EncoderConfig(tessellations=(t,)), generator=torch.Generator().manual_seed(0)).eval()
        for t in (plain, dataclasses.replace(plain, harmonics=2))
    )
    assert "harmonics" not in one.config.to_dict()["tessellations"][0]
    assert other.config.to_dict()["tessellations"][0]["harmonics"] == 2
    other.load_state_dict(
        one.state_dict() | {"tessellations.0.embeddings": other.state_dict()["tessellations.0.embeddings"]}
    )
    here = torch.from_numpy(PLACES).float()
    assert torch.equal(one(here), other.at(None)(here))
    torch.testing.assert_close(one(here), other(here, torch.from_numpy(SEASONS)))  # cycles begin with nothing


@pytest.mark.parametrize("kind", KINDS)
def test_a_season_may_be_taken_out_as_an_encoder_of_its_own(kind: str) -> None:
    encoder = build(kind)
    july = float(share_of_months(7))
    torch.testing.assert_close(
        encoder.at(july)(torch.from_numpy(PLACES)),
        encoder(torch.from_numpy(PLACES), torch.full((len(PLACES),), july, dtype=torch.float64)),
    )
    torch.testing.assert_close(encoder.at(None)(torch.from_numpy(PLACES)), encoder(torch.from_numpy(PLACES)))
    assert not encoder.at(july).config.knows_seasons


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "plain"}, {"precision": "float64"}, {"batch_size": 70}, {"top_k": 5}]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_embedding_agrees(kind: str, options: dict[str, Any]) -> None:
    encoder = build(kind)
    embed = Embedder(encoder, device="cpu", **options)
    dates = np.datetime64("2023-01-01") + np.floor(SEASONS * 365).astype("timedelta64[D]")
    season, latlon = torch.from_numpy(share_of_dates(dates)), torch.from_numpy(PLACES)
    wanted = build(kind).encode(latlon, options.get("top_k"), season).embedding.numpy()
    atol = 2e-3 if embed.precision == "float32" else 1e-6  # sharp sites magnify the rounding of their own positions
    assert np.abs(embed(PLACES, date=dates) - wanted).max() < atol
    whole = build(kind).encode(latlon, options.get("top_k")).embedding.numpy()
    assert np.abs(embed(PLACES) - whole).max() < atol
    some = embed(PLACES[:3], date=dates[:3])
    assert np.abs(some - wanted[:3]).max() < atol
    assert np.abs(embed(*PLACES[0], date=dates[:5])[0] - wanted[0]).max() < atol


def test_gradients_of_cycles_are_those_of_differences() -> None:
    numbers = torch.randn(5, 4 * 5, dtype=torch.float64, requires_grad=True)
    season = torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda n: mix_season(n, 4, season), numbers)


def test_a_planted_cycle_is_found() -> None:
    sites = TessellationConfig(num_sites=64, site_dim=4, sharpness=20.0, harmonics=1)
    config = EncoderConfig(
        tessellations=(sites,), num_tokens=0, hidden_dim=32, output_dim=16, num_blocks=0, normalize=False
    )
    encoder = SphericalVoronoiEncoder(config, sites="full", generator=torch.Generator().manual_seed(0))
    readout = torch.nn.Linear(16, 1)
    places, held_out = fibonacci_lattice(400).float(), fibonacci_lattice(333).float()

    def truth(xyz: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return 2 * xyz[:, 0] - 3 * xyz[:, 2] * torch.cos(2 * torch.pi * (t - 0.55)).float()

    optimiser = torch.optim.Adam([*encoder.parameters(), *readout.parameters()], lr=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        t = torch.rand(len(places), generator=generator, dtype=torch.float64)
        loss = (readout(encoder.embed_xyz(places, season=t))[:, 0] - truth(places, t)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    t = torch.rand(len(held_out), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        left = readout(encoder.embed_xyz(held_out, season=t))[:, 0] - truth(held_out, t)
    assert 1 - float(left.var() / truth(held_out, t).var()) > 0.99


def test_months_and_dates_are_shares_of_their_own_year() -> None:
    assert share_of_months(1) == pytest.approx(0.5 / 12)
    assert share_of_dates("2024-02-29") == pytest.approx(59.5 / 366)
    assert share_of_dates("2023-12-31T23:59:00") == pytest.approx(364.5 / 365)
    assert share_of_dates("1899-01-01") == pytest.approx(0.5 / 365)
    several = ["2024-07-14", np.datetime64("2024-07-14"), np.datetime64("2024-07-14T05:00", "ns")]
    assert len({float(share_of_dates(one)) for one in several}) == 1


def test_what_is_no_season_is_named() -> None:
    embed = Embedder(build("one tessellation").float(), device="cpu")
    for wrong, message in (
        ({"month": 13}, "13 is no month; give whole numbers from 1 to 12"),
        ({"month": [1, 2.5]}, "2.5 in row 1 is no month"),
        ({"month": "July"}, "'July' is no month; give numbers from 1 to 12"),
        ({"date": "2023-02-29"}, "'2023-02-29' is no date; write YYYY-MM-DD"),
        ({"date": ["2023-02-28", "soon"]}, "'soon' in row 1 is no date"),
        ({"date": ["2023-02-28", None]}, "None in row 1 is no date"),
        ({"month": [1, 2, 3]}, "there are 3 months or dates for 2 places; give one for all, or one each"),
    ):
        with pytest.raises(CoordinateError, match=message):
            embed([(0, 0), (50, 70)], **wrong)
    with pytest.raises(ConfigError, match="the season was given twice: pass month or date"):
        embed(50, 70, month=1, date="2020-01-01")
    with pytest.raises(ConfigError, match="for each place does not go with on_bad = 'skip': give one for all"):
        embed([(0, 0), (50, 70)], month=[1, 2], on_bad="skip")


def test_models_without_seasons_refuse_to_be_asked() -> None:
    embed = Embedder(tiny_encoder().float(), device="cpu")
    with pytest.raises(ConfigError, match="knows no season: leave out month and date"):
        embed(50, 70, month=7)
    with pytest.raises(ConfigError, match="harmonics is 6; it lies between 0 and 5"):
        TessellationConfig(harmonics=6)


def test_a_month_is_part_of_a_models_name_wherever_models_are_named(tmp_path: Path) -> None:
    encoder = build("levels ending in units").float()
    file = str(tmp_path / "m.safetensors")
    encoder.save(file)
    here = np.round(PLACES, 3)
    wanted = Embedder(file, device="cpu")(here, month=7)
    np.testing.assert_allclose(Embedder(f"{file}+month=7", device="cpu")(here), wanted, atol=2e-6)
    assert Embedder(f"{file}+month=7").fingerprint() != Embedder(file).fingerprint()
    assert describe_model(f"{file}+month=7")["month"] == "7"
    np.savetxt(tmp_path / "t.csv", here, delimiter=",", header="lat,lon", comments="", fmt="%.3f")
    run = CliRunner().invoke(
        cli,
        [
            "encode",
            "--input",
            str(tmp_path / "t.csv"),
            "--model",
            file,
            "--month",
            "7",
            "--out",
            str(tmp_path / "e.npy"),
        ],
    )
    assert run.exit_code == 0, run.output
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), wanted, atol=2e-6)
    for name, message in (
        (f"{file}+month=13", "13 is no month"),
        (f"{file}+month=July", "'July' is no month"),
        ("earth-small+month=7", "earth-small knows no season: leave out the month"),
    ):
        with pytest.raises(TessearthError, match=message):
            Embedder(name, device="cpu")


def test_a_column_of_dates_is_what_the_library_makes_of_them(tmp_path: Path) -> None:
    file, table = str(tmp_path / "m.safetensors"), tmp_path / "t.csv"
    build("levels ending in units").float().save(file)
    places, days = np.round(PLACES, 3), np.datetime64("2024-01-01") + np.arange(len(PLACES))
    rows = [f"0{i},{lat:.3f},{lon:.3f},{day}" for i, ((lat, lon), day) in enumerate(zip(places, days, strict=True))]
    table.write_text("\n".join(["id,lat,lon,day", *rows]) + "\n")
    wanted = Embedder(file, device="cpu")(places, date=days)

    def encode(*options: str) -> Any:
        given = ["encode", "--input", str(table), "--model", file, "--date", "day", "--overwrite", *options]
        return CliRunner().invoke(cli, [*given, "--out", str(tmp_path / "e.npy")])

    for options in ((), ("--workers", "2")):
        done = encode(*options)
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(np.load(tmp_path / "e.npy"), wanted, atol=2e-6)
    table.write_text("\n".join(["id,lat,lon,day", *rows[:5], "5,10,20,soon", "6,10,20,", *rows[7:]]) + "\n")
    refused = encode().exception
    assert "2 of 330 rows" in str(refused)
    assert "row 6: column 'day' holds 'soon', which is no date; write YYYY-MM-DD" in str(refused)
    assert "null" not in str(refused)
    assert "a row without a date cannot be kept" in str(encode("--bad-rows", "null").exception)
    hidden = [f"0{i},95,0,2024-01-01" for i in range(300)]  # errors name the first bad rows alone
    table.write_text("\n".join(["id,lat,lon,day", *hidden, *rows[:5], "5,10,20,soon"]) + "\n")
    assert "row 306: column 'day' holds 'soon'" in str(encode("--bad-rows", "null").exception)
    table.write_text("\n".join(["id,lat,lon,day", *rows[:5], "5,10,20,soon", "6,10,20,", *rows[7:]]) + "\n")
    assert "column 'lat' holds the places" in str(encode("--date", "lat").exception)
    assert encode("--bad-rows", "skip").exit_code == 0
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), np.delete(wanted, (5, 6), axis=0), atol=2e-6)


def test_tables_in_memory_name_their_column_of_dates() -> None:
    encoder = build("one tessellation").float()
    embed, days = Embedder(encoder, device="cpu"), np.datetime64("2024-01-01") + np.arange(len(PLACES))
    wanted = embed(PLACES, date=days)
    frame = pd.DataFrame({"lat": PLACES[:, 0], "lon": PLACES[:, 1], "day": days})
    for table in (frame, frame.assign(day=days.astype(str)), pa.Table.from_pandas(frame), frame.to_dict("records")):
        np.testing.assert_allclose(embed(table, date="day"), wanted, atol=1e-6)
    np.testing.assert_allclose(embed(frame, date="2024-01-01"), embed(PLACES, date="2024-01-01"), atol=1e-6)
    features = LocationFeatures(encoder, date="day").fit(frame)
    np.testing.assert_allclose(features.transform(frame), wanted, atol=1e-6)
    with pytest.raises(CoordinateError, match="there is no column 'dya' of dates"):
        LocationFeatures(encoder, date="dya").fit(frame).transform(frame)
