"""What the model says of places, sites and tokens, as the answers that requests get."""

import numpy as np
import numpy.typing as npt
import torch

from tessearth.embedding.retrieval import most_alike
from tessearth.encoder.tokens import measure_token_use
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.errors import UnknownNameError
from tessearth.explorer.schemas import (
    CompareAnswer,
    NearSite,
    PlaceAnswer,
    SimilarAnswer,
    SimilarPlace,
    SitesAnswer,
    Support,
    Token,
    TokenPlace,
    TokensAnswer,
    TokenShare,
)
from tessearth.explorer.session import FEWEST_SITES, Names, Served, describe_place
from tessearth.labels.outlines import world_rings
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.geometry import EARTH_RADIUS_KM, angular_distance, latlon_to_xyz, xyz_to_latlon
from tessearth.sphere.voronoi_cells import cells_geojson

SHOWN_TOKENS, SHOWN_SITES, SHOWN_PLACES = 5, 5, 6
PLACES_APART_KM = 1000.0
CELL_STEP_DEGREES = 4.0
FREQUENT = 0.005
"""Climates on less than this share of land say nothing of a token."""


def answer_place(served: Served, place: Floats) -> PlaceAnswer:
    """Labels, support, tokens and sites of one place (2,)."""
    known = describe_place(place)
    tokens: list[TokenShare] = []
    sites: list[NearSite] = []
    support = None
    if served.embedder.has_sites:
        explained = served.embedder.explain(place)
        sites = _near_sites(served, place, explained.site_weights)
        support = _support(served, place, sites)
        if explained.token_attention is not None:
            shares = explained.token_attention
            best = np.argsort(-shares, kind="stable")[:SHOWN_TOKENS]
            tokens = [TokenShare(token=int(i), share=round(float(shares[i]), 5)) for i in best]
    lat, lon = place.tolist()
    return PlaceAnswer(lat=lat, lon=lon, support=support, tokens=tokens, sites=sites, **known)


def _near_sites(served: Served, place: Floats, weights: npt.NDArray[np.float32]) -> list[NearSite]:
    count = min(SHOWN_SITES, served.num_sites)
    near = served.embedder.nearest_sites(place, count=count)
    encoder = served.embedder.encoder
    latlon = xyz_to_latlon(encoder.sites().positions.double()).cpu().numpy()
    sharpness = encoder.sites().sharpness.cpu().numpy()
    return [
        NearSite(
            site=site,
            lat=round(float(latlon[site, 0]), 4),
            lon=round(float(latlon[site, 1]), 4),
            distance_km=round(float(np.deg2rad(degrees) * EARTH_RADIUS_KM), 1),
            weight=round(float(weights[site]), 5),
            sharpness=round(float(sharpness[site]), 2),
        )
        for site, degrees in zip(near.site.tolist(), near.distance.tolist(), strict=True)
    ]


def _support(served: Served, place: Floats, sites: list[NearSite]) -> Support:
    found = served.embedder.support(place)
    angle = sites[0].distance_km / EARTH_RADIUS_KM
    return Support(
        score=round(float(np.exp(-sites[0].sharpness * angle**2 / 2)), 4),
        nearest_km=sites[0].distance_km,
        effective_sites=round(float(np.exp(found.entropy)), 1),
    )


def answer_similar(
    served: Served, place: Floats, query: npt.NDArray[np.float32], count: int, apart_km: float
) -> SimilarAnswer:
    """Places on land like one (2,) whose embedding (D,) is given."""
    latlon, keys, names = served.land
    alike = most_alike(query, place, keys, latlon, count, apart_km)
    places = [
        SimilarPlace(
            lat=round(float(latlon[row, 0]), 4),
            lon=round(float(latlon[row, 1]), 4),
            similarity=round(float(similarity), 5),
            distance_km=round(float(distance), 1),
            **names.of(int(row)),
        )
        for row, similarity, distance in zip(*alike, strict=True)
    ]
    lat, lon = place.tolist()
    return SimilarAnswer(lat=lat, lon=lon, places=places, compared=len(latlon))


def compare_places(served: Served, places: Floats, embeddings: npt.NDArray[np.float32]) -> CompareAnswer:
    """Two places (2, 2) and their embeddings (2, D)."""
    one, other = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    _, keys, _ = served.land
    cosine = float(one @ other)
    angle = angular_distance(*latlon_to_xyz(torch.from_numpy(places)))
    return CompareAnswer(
        similarity=round(cosine, 6),
        distance_km=round(float(angle) * EARTH_RADIUS_KM, 1),
        rank=round(float((keys @ one < cosine).mean()), 5),
    )


def answer_sites(served: Served) -> SitesAnswer:
    """Every site of every tessellation."""
    voronois = _voronois(served)
    xyz = torch.cat([voronoi.positions() for voronoi in voronois]).double().cpu()
    latlon = xyz_to_latlon(xyz).numpy()
    sharpness = torch.cat([voronoi.sharpness() for voronoi in voronois]).double().cpu().numpy()
    areas = np.concatenate([_areas_km2(served, number) for number in range(len(voronois))])
    owner = np.repeat(np.arange(len(voronois)), [voronoi.config.num_sites for voronoi in voronois])
    return SitesAnswer(
        lat=latlon[:, 0].round(4).tolist(),
        lon=latlon[:, 1].round(4).tolist(),
        sharpness=sharpness.round(3).tolist(),
        reach_km=(EARTH_RADIUS_KM / np.sqrt(sharpness)).round(1).tolist(),
        territory_km2=areas.round().tolist(),
        tessellation=owner.tolist(),
    )


def answer_cells(served: Served, tessellation: int) -> object:
    """The cells of one tessellation as GeoJSON, each with its site's number, sharpness and area."""
    voronois = _voronois(served)
    if not 0 <= tessellation < len(voronois):
        raise UnknownNameError(f"there is no tessellation {tessellation}: the model has {len(voronois)}, from 0")
    voronoi = voronois[tessellation]
    cells = served.cells(tessellation)
    sharpness = voronoi.sharpness().double().cpu().numpy()
    first = sum(before.config.num_sites for before in voronois[:tessellation])
    areas = cells.areas() * EARTH_RADIUS_KM**2
    properties = [
        {"site": first + i, "sharpness": round(float(sharpness[i]), 2), "area_km2": round(float(area))}
        for i, area in enumerate(areas)
    ]
    return cells_geojson(cells, properties, step_degrees=CELL_STEP_DEGREES)


def answer_tokens(served: Served) -> TokensAnswer:
    """How places on land use the tokens: the most used first, each with the places where it is strongest."""
    latlon, _, names = served.land
    attention = _read_at(served.field("attention"), latlon)
    use = measure_token_use(torch.from_numpy(attention))
    mean = use.mean.numpy()
    tokens = [
        Token(
            token=int(i),
            mean=round(float(mean[i]), 6),
            highest=round(float(attention[:, i].max()), 5),
            climate=_favoured(attention[:, i], names),
            places=_token_places(attention[:, i], latlon, names),
        )
        for i in np.argsort(-mean, kind="stable")
    ]
    return TokensAnswer(count=len(tokens), effective=round(use.effective, 2), tokens=tokens)


def answer_outlines() -> object:
    """Coasts and borders as GeoJSON, as fine as a world map shows them."""
    lines = [ring[:, ::-1].round(2).tolist() for ring in world_rings()]
    geometry = {"type": "MultiLineString", "coordinates": lines}
    return {"type": "Feature", "geometry": geometry, "properties": {}}


def _voronois(served: Served) -> list[SoftVoronoi]:
    if not served.embedder.has_sites:
        raise UnknownNameError(f"{served.embedder.name} has no sites")
    voronois: list[SoftVoronoi] = served.embedder.encoder.voronois()
    return voronois


def _areas_km2(served: Served, tessellation: int) -> Floats:
    count = _voronois(served)[tessellation].config.num_sites
    if count < FEWEST_SITES:  # an equal share each
        return np.full(count, 4 * np.pi * EARTH_RADIUS_KM**2 / count)
    return np.asarray(served.cells(tessellation).areas() * EARTH_RADIUS_KM**2)


def _read_at(field: npt.NDArray[np.float16], latlon: Floats) -> npt.NDArray[np.float32]:
    """The grid's nearest cell for each place (N, 2), (N, C)."""
    height, width = field.shape[:2]
    row = np.clip(((90 - latlon[:, 0]) * (height / 180)).astype(np.int64), 0, height - 1)
    column = (np.mod(latlon[:, 1] + 180, 360) * (width / 360)).astype(np.int64) % width
    return np.asarray(field[row, column], dtype=np.float32)


def _favoured(share: npt.NDArray[np.float32], names: Names) -> str | None:
    """The climate whose places give the token most above the mean."""
    codes = names.codes.get("climate")
    if codes is None:
        return None
    known = codes >= 0
    counts = np.bincount(codes[known])
    sums = np.bincount(codes[known], share[known])
    frequent = counts >= max(1, FREQUENT * known.sum())
    return names.word("climate", int(np.argmax(np.where(frequent, sums / np.maximum(counts, 1), -1))))


def _token_places(share: npt.NDArray[np.float32], latlon: Floats, names: Names) -> list[TokenPlace]:
    """Where a token is strongest, no two places near each other."""
    xyz = latlon_to_xyz(torch.from_numpy(latlon)).numpy()
    chosen: list[int] = []
    free = np.ones(len(share), dtype=bool)
    for row in np.argsort(-share, kind="stable"):
        if free[row]:
            chosen.append(int(row))
            if len(chosen) == SHOWN_PLACES:
                break
            free &= xyz @ xyz[row] < np.cos(PLACES_APART_KM / EARTH_RADIUS_KM)
    return [
        TokenPlace(
            lat=round(float(latlon[row, 0]), 4),
            lon=round(float(latlon[row, 1]), 4),
            share=round(float(share[row]), 5),
            **names.of(row),
        )
        for row in chosen
    ]
