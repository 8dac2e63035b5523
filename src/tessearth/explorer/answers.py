"""What the model and the labels say of places, sites and tokens, as the answers that requests get."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.embedding import FewSites, Nearby, most_alike
from tessearth.encoder import TRAJECTORIES, SoftVoronoi, Trajectory, measure_token_use
from tessearth.errors import ConfigError, MissingExtraError
from tessearth.explorer import schemas
from tessearth.labels import LABELS, prepare_labels
from tessearth.plotting import moved_km, sample_sites, to_latlon, top_places
from tessearth.sphere import (
    EARTH_RADIUS_KM,
    Cells,
    Floats,
    angular_distance,
    cells_geojson,
    latlon_to_xyz,
    world_rings,
    xyz_to_latlon,
)
from tessearth.zoo import shipped_folder

Array = npt.NDArray[Any]
Features = npt.NDArray[np.float32]

CLASSES = {"country": "country", "climate": "koppen"}
"""Names in answers, and the labels behind them."""
MEASURED = {"temperature_c": "temperature", "elevation_m": "elevation"}
SHOWN_TOKENS, SHOWN_SITES, SHOWN_PLACES = 5, 5, 6
PLACES_APART_KM = 1000.0
CELL_STEP_DEGREES = 4.0
FREQUENT = 0.005
"""Climates on less than this share of land are no description of a token."""


class Land(NamedTuple):
    """The places that others are compared with."""

    latlon: Floats
    """(N, 2)."""
    keys: Features
    """Unit embeddings, (N, D)."""
    labels: Mapping[str, Array]
    """Codes (N,) of the classes in `CLASSES`; empty where the label packages are not installed."""


def find_labels(latlon: Floats, names: Mapping[str, str] = CLASSES) -> dict[str, Array]:
    """Labels of places (N, 2) by their names in answers; none where the label packages are not installed."""
    try:
        found = prepare_labels(latlon, names.values())
    except MissingExtraError:
        return {}
    return {name: found[label] for name, label in names.items()}


def _class_words(labels: Mapping[str, Array], row: int) -> dict[str, Any]:
    """Country and climate of one place in words."""
    return {name: _word(name, int(labels[name][row])) for name in CLASSES if name in labels}


def _word(name: str, code: int) -> str | None:
    class_names = LABELS[CLASSES[name]].class_names
    return class_names()[code] if class_names is not None and code >= 0 else None


def _describe(place: Floats) -> dict[str, Any]:
    """All labels of one place (2,), ready for JSON."""
    labels = find_labels(place[None], {**CLASSES, **MEASURED, "land": "land"})
    if not labels:
        return {}
    numbers = {name: float(labels[name][0]) for name in MEASURED}
    measured = {name: round(number, 1) if np.isfinite(number) else None for name, number in numbers.items()}
    return {**_class_words(labels, 0), **measured, "land": bool(labels["land"][0])}


def _ask_sites(few: FewSites, latlon: Floats) -> tuple[Tensor, list[Nearby], Tensor]:
    """Directions (n, 3), the sites that matter in every tessellation, and token attention (n, T) of a few places."""
    encoder = few.encoder
    xyz = F.normalize(latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(latlon))), dim=-1)
    xyz = xyz.to(encoder.norm.weight.device, encoder.input_dtype)
    nearby = few.weigh(xyz)
    _, attention = encoder.blend(xyz, few.add_up(nearby))
    return xyz, nearby, xyz.new_empty((len(xyz), 0)) if attention is None else attention


@torch.inference_mode()
def site_fields(few: FewSites, latlon: Floats) -> tuple[Features, Features]:
    """Token attention (N, T) and sharpness (N, 1) of places (N, 2).

    Sharpness is the mean of the sites' logarithms, weighted by the place's shares in them; tessellations count equally.
    """
    _, nearby, attention = _ask_sites(few, latlon)
    logs = few.average(nearby, [voronoi.log_sharpness for voronoi in few.encoder.voronois()])
    sharpness = torch.stack(logs).mean(0).exp()
    return attention.float().cpu().numpy(), sharpness.float().cpu().numpy()[:, None]


@torch.inference_mode()
def explain_places(few: FewSites, latlon: Floats) -> Array:
    """The support, tokens and sites of places (N, 2), in one pass over the sites: fields of `PlaceAnswer`s, (N,)."""
    positions, sharpness = few.encoder.sites()
    xyz, nearby, attention = _ask_sites(few, latlon)
    site, degrees = few.site_map.nearest(xyz, min(SHOWN_SITES, len(positions)))
    entropy, _, *gaps = few.site_map.support(xyz, [part.weights for part in nearby])
    relative = gaps[0] if gaps else xyz.new_empty((len(xyz), 0))
    places, weight = xyz_to_latlon(positions[site].double()), few.share(nearby, site)
    columns = (attention, entropy, relative, site, places, degrees.deg2rad() * EARTH_RADIUS_KM, weight, sharpness[site])
    found = np.empty(len(latlon), dtype=object)
    rows = zip(*(column.double().cpu().numpy() for column in columns), strict=True)
    for number, (shares, spread, gap, *near) in enumerate(rows):
        sites = [
            schemas.NearSite(
                site=int(site),
                **_rounded_place(place),
                distance_km=round(float(distance), 1),
                weight=round(float(weight), 5),
                sharpness=round(float(sharp), 2),
            )
            for site, place, distance, weight, sharp in zip(*near, strict=True)
        ]
        best = np.argsort(-shares, kind="stable")[:SHOWN_TOKENS]
        tokens = [schemas.TokenShare(token=int(i), share=round(float(shares[i]), 5)) for i in best]
        found[number] = {"support": _support(sites[0], spread, gap), "tokens": tokens, "sites": sites}
    return found


def _support(nearest: schemas.NearSite, entropy: float, relative: Array) -> schemas.Support:
    """The coverage of a place by its nearest site, the entropy of its site weights and the spacing of each level."""
    angle = nearest.distance_km / EARTH_RADIUS_KM
    return schemas.Support(
        score=round(float(np.exp(-nearest.sharpness * angle**2 / 2)), 4),
        nearest_km=nearest.distance_km,
        effective_sites=round(float(np.exp(entropy)), 1),
        relative=relative.round(3).tolist() or None,
    )


def answer_place(place: Floats, explained: Mapping[str, Any] | None = None) -> schemas.PlaceAnswer:
    """One place (2,) with its labels, and what `explain_places` says of it."""
    lat, lon = place.tolist()
    return schemas.PlaceAnswer(lat=lat, lon=lon, **(explained or {"tokens": [], "sites": []}), **_describe(place))


def _rounded_place(place: Floats) -> dict[str, Any]:
    return {"lat": round(float(place[0]), 4), "lon": round(float(place[1]), 4)}


def answer_similar(land: Land, place: Floats, query: Features, count: int, apart_km: float) -> schemas.SimilarAnswer:
    """Places on land like one (2,) whose embedding (D,) is given."""
    alike = most_alike(query, place, land.keys, land.latlon, count, apart_km)
    places = [
        schemas.SimilarPlace(
            similarity=round(float(similarity), 5),
            distance_km=round(float(distance), 1),
            **_rounded_place(land.latlon[row]),
            **_class_words(land.labels, int(row)),
        )
        for row, similarity, distance in zip(*alike, strict=True)
    ]
    lat, lon = place.tolist()
    return schemas.SimilarAnswer(lat=lat, lon=lon, places=places, compared=len(land.latlon))


def compare_places(land: Land, places: Floats, embeddings: Features) -> schemas.CompareAnswer:
    """Two places (2, 2) and their embeddings (2, D)."""
    one, other = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    cosine = float(one @ other)
    angle = angular_distance(*latlon_to_xyz(torch.from_numpy(places)))
    return schemas.CompareAnswer(
        similarity=round(cosine, 6),
        distance_km=round(float(angle) * EARTH_RADIUS_KM, 1),
        rank=round(float((land.keys @ one < cosine).mean()), 5),
    )


def answer_sites(voronois: Sequence[SoftVoronoi], areas: Sequence[Floats]) -> schemas.SitesAnswer:
    """Every site of every tessellation, with the areas of their cells in square kilometres."""
    latlon = xyz_to_latlon(torch.cat([voronoi.positions() for voronoi in voronois]).double().cpu()).numpy()
    sharpness = torch.cat([voronoi.sharpness() for voronoi in voronois]).double().cpu().numpy()
    return schemas.SitesAnswer(
        lat=latlon[:, 0].round(4).tolist(),
        lon=latlon[:, 1].round(4).tolist(),
        sharpness=sharpness.round(3).tolist(),
        reach_km=(EARTH_RADIUS_KM / np.sqrt(sharpness)).round(1).tolist(),
        territory_km2=np.concatenate(areas).round().tolist(),
        tessellation=np.repeat(np.arange(len(areas)), [len(each) for each in areas]).tolist(),
    )


def answer_cells(voronois: Sequence[SoftVoronoi], tessellation: int, cells: Cells) -> object:
    """The cells of one tessellation as GeoJSON, each with its site's number, sharpness and area."""
    sharpness = voronois[tessellation].sharpness().double().cpu().numpy()
    first = sum(before.config.num_sites for before in voronois[:tessellation])
    properties = [
        {"site": first + i, "sharpness": round(float(sharpness[i]), 2), "area_km2": round(float(area))}
        for i, area in enumerate(cells.areas() * EARTH_RADIUS_KM**2)
    ]
    return cells_geojson(cells, properties, step_degrees=CELL_STEP_DEGREES)


def answer_tokens(land: Land, field: npt.NDArray[np.float16]) -> schemas.TokensAnswer:
    """The use of tokens by places on land, read off a world map of attention (H, W, T): the most used first."""
    attention = _read_at(field, land.latlon)
    use = measure_token_use(torch.from_numpy(attention))
    mean = use.mean.numpy()
    tokens = []
    for i in np.argsort(-mean, kind="stable"):
        share = attention[:, i]
        places = [
            schemas.TokenPlace(
                share=round(float(share[row]), 5), **_rounded_place(land.latlon[row]), **_class_words(land.labels, row)
            )
            for row in top_places(land.latlon, share, SHOWN_PLACES, PLACES_APART_KM / EARTH_RADIUS_KM)
        ]
        highest, favoured = round(float(share.max()), 5), _favoured_climate(share, land.labels)
        token = schemas.Token(
            token=int(i), mean=round(float(mean[i]), 6), highest=highest, climate=favoured, places=places
        )
        tokens.append(token)
    return schemas.TokensAnswer(count=len(tokens), effective=round(use.effective, 2), tokens=tokens)


def _read_at(field: npt.NDArray[np.float16], latlon: Floats) -> Features:
    """The grid's nearest cell for each place (N, 2), (N, C)."""
    height, width = field.shape[:2]
    row = np.clip(((90 - latlon[:, 0]) * (height / 180)).astype(np.int64), 0, height - 1)
    column = (np.mod(latlon[:, 1] + 180, 360) * (width / 360)).astype(np.int64) % width
    return np.asarray(field[row, column], dtype=np.float32)


def _favoured_climate(share: Features, labels: Mapping[str, Array]) -> str | None:
    """The climate with the highest mean share of a token among those that are frequent."""
    if "climate" not in labels:
        return None
    codes = labels["climate"]
    known = codes >= 0
    counts = np.bincount(codes[known])
    sums = np.bincount(codes[known], share[known])
    frequent = counts >= max(1, FREQUENT * known.sum())
    return _word("climate", int(np.argmax(np.where(frequent, sums / np.maximum(counts, 1), -1))))


def answer_outlines() -> object:
    """Coasts and borders as GeoJSON, with the detail of a world map."""
    lines = [ring[:, ::-1].round(2).tolist() for ring in world_rings()]
    geometry = {"type": "MultiLineString", "coordinates": lines}
    return {"type": "Feature", "geometry": geometry, "properties": {}}


MOST_FRAMES = 60


def find_trajectory(model: str | PathLike[str]) -> Path | None:
    """The trajectory next to a model's file, in its folder, or in the run of its weights; None without any."""
    path = shipped_folder(model) or Path(model)
    if not path.exists():
        return None
    near = [path / TRAJECTORIES]
    if not path.is_dir():
        near = [path.with_suffix(f".{TRAJECTORIES}"), path.parent / TRAJECTORIES]
    if path.parent.name == "weights":
        near.append(path.parent.parent / TRAJECTORIES)
    return next((file for file in near if file.is_file()), None)


def describe_migration(record: Trajectory, *, share: float, frames: int, seed: int) -> schemas.MigrationAnswer:
    """A seeded share of the sites over evenly chosen frames, always with the first and the last."""
    if not 2 <= frames <= MOST_FRAMES:
        raise ConfigError(f"frames is {frames}; it must lie between 2 and {MOST_FRAMES}")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more")
    chosen = sample_sites(record.positions.shape[1], share, seed)
    shown = np.unique(np.linspace(0, len(record.steps) - 1, frames).round().astype(np.int64))
    positions = record.positions[:, chosen].astype(np.float64)
    latlon = to_latlon(positions[shown])
    return schemas.MigrationAnswer(
        steps=record.steps[shown].tolist(),
        sites=chosen.tolist(),
        lat=latlon[..., 0].round(3).tolist(),
        lon=latlon[..., 1].round(3).tolist(),
        moved_km=moved_km(positions).round(1).tolist(),
    )
