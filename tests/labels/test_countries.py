"""Which country: known cities, islands, enclaves, both sides of the antimeridian, coasts."""

import numpy as np
import pytest

from tessearth.labels.countries import (
    country,
    country_continents,
    country_inside,
    country_names,
    nearest_country,
)
from tessearth.sphere.land import CELLS_PER_DEGREE, Outline, find_stretches, load_outlines

CITIES = {
    "Paris": (48.8566, 2.3522, "France"),
    "Cayenne": (4.93, -52.33, "France"),
    "Saint-Denis, Reunion": (-20.90, 55.45, "France"),
    "London": (51.5074, -0.1278, "United Kingdom"),
    "Dublin": (53.35, -6.28, "Ireland"),
    "Madrid": (40.4168, -3.7038, "Spain"),
    "Lisbon": (38.73, -9.14, "Portugal"),
    "Berlin": (52.52, 13.405, "Germany"),
    "Rome": (41.90, 12.50, "Italy"),
    "San Marino": (43.936, 12.447, "San Marino"),
    "Monaco": (43.738, 7.425, "Monaco"),
    "Vaduz": (47.14, 9.53, "Liechtenstein"),
    "Andorra la Vella": (42.507, 1.522, "Andorra"),
    "Kaliningrad": (54.71, 20.51, "Russia"),
    "Moscow": (55.7558, 37.6173, "Russia"),
    "Anadyr, Chukotka": (64.73, 177.50, "Russia"),
    "Uelen, Chukotka, east of 180": (66.155, -169.81, "Russia"),
    "Nome": (64.51, -165.40, "United States of America"),
    "Adak, Aleutians": (51.86, -176.65, "United States of America"),
    "Anchorage": (61.21, -149.89, "United States of America"),
    "Honolulu": (21.32, -157.84, "United States of America"),
    "New York": (40.75, -73.97, "United States of America"),
    "Ottawa": (45.42, -75.70, "Canada"),
    "Mexico City": (19.43, -99.13, "Mexico"),
    "Havana": (23.11, -82.37, "Cuba"),
    "San Juan": (18.40, -66.06, "Puerto Rico"),
    "Bridgetown": (13.11, -59.60, "Barbados"),
    "Manaus": (-3.10, -60.02, "Brazil"),
    "Rio Grande, Tierra del Fuego": (-53.79, -67.73, "Argentina"),
    "Nuuk": (64.18, -51.70, "Greenland"),
    "Reykjavik": (64.13, -21.90, "Iceland"),
    "Longyearbyen": (78.21, 15.60, "Norway"),
    "Maseru, in Lesotho": (-29.32, 27.50, "Lesotho"),
    "Mbabane": (-26.32, 31.14, "eSwatini"),
    "Pretoria": (-25.75, 28.19, "South Africa"),
    "Banjul": (13.44, -16.65, "Gambia"),
    "Praia": (14.93, -23.51, "Cabo Verde"),
    "Port Louis": (-20.17, 57.51, "Mauritius"),
    "Cairo": (30.04, 31.24, "Egypt"),
    "Jerusalem, west": (31.78, 35.20, "Israel"),
    "Doha": (25.28, 51.52, "Qatar"),
    "Manama": (26.21, 50.57, "Bahrain"),
    "Delhi": (28.61, 77.21, "India"),
    "Colombo": (6.92, 79.87, "Sri Lanka"),
    "Singapore": (1.35, 103.82, "Singapore"),
    "Bandar Seri Begawan": (4.90, 114.94, "Brunei"),
    "Dili": (-8.57, 125.58, "Timor-Leste"),
    "Oecusse, apart from the rest": (-9.30, 124.35, "Timor-Leste"),
    "Hong Kong": (22.38, 114.12, "Hong Kong"),
    "Tokyo": (35.68, 139.76, "Japan"),
    "Sydney": (-33.87, 151.18, "Australia"),
    "Suva": (-18.12, 178.44, "Fiji"),
    "Taveuni, on 180": (-16.85, -179.98, "Fiji"),
    "Labasa, west of 180": (-16.45, 179.40, "Fiji"),
    "Apia": (-13.86, -171.75, "Samoa"),
    "Nuku'alofa": (-21.17, -175.21, "Tonga"),
    "Kiritimati": (1.87, -157.40, "Kiribati"),
    "Chatham Islands": (-43.95, -176.55, "New Zealand"),
    "Yaren": (-0.54, 166.93, "Nauru"),
    "South Pole": (-90.0, 0.0, "Antarctica"),
    "South Pole again": (-90.0, 180.0, "Antarctica"),
}


def names_at(latlon: np.ndarray) -> list[str]:
    return [country_names()[code] if code >= 0 else "" for code in country(latlon)]


def test_known_cities_lie_in_their_countries() -> None:
    latlon = np.array([(lat, lon) for lat, lon, _ in CITIES.values()])
    found = dict(zip(CITIES, names_at(latlon), strict=True))
    assert found == {city: name for city, (_, _, name) in CITIES.items()}


def test_longitudes_of_another_turn_are_the_same_places() -> None:
    latlon = np.array([(lat, lon) for lat, lon, _ in CITIES.values()])
    np.testing.assert_array_equal(country(latlon + np.array((0.0, 360.0))), country(latlon))


@pytest.mark.parametrize("place", [(0.0, -30.0), (90.0, 0.0), (-60.0, 180.0), (-40.0, -179.9), (20.0, 65.0)])
def test_the_open_sea_has_no_country(place: tuple[float, float]) -> None:
    assert country(np.array([place])) == [-1]


def test_land_outside_every_outline_belongs_to_the_nearest(benchmark: dict) -> None:
    latlon = benchmark["country"].latlon
    stray = latlon[country_inside(latlon) < 0]
    assert len(stray) > 100  # coasts of two maps never agree
    points = [(number, ring) for number, outline in enumerate(load_outlines()) for ring in outline.rings]
    owners = np.repeat([number for number, _ in points], [len(ring) for _, ring in points])
    vertices = unit_vectors(np.concatenate([ring for _, ring in points]))
    for place in stray[:: len(stray) // 25]:
        distance_km = 6371 * np.arccos(np.clip(vertices @ unit_vectors(place), -1, 1))
        found = nearest_country(place[None])[0]
        # Vertices lie up to some kilometres apart, the tree also knows the edges between them.
        assert distance_km[owners == found].min() < distance_km.min() + 5


def unit_vectors(latlon: np.ndarray) -> np.ndarray:
    lat, lon = np.radians(np.moveaxis(latlon, -1, 0))
    return np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), axis=-1)


def test_rows_agree_with_every_outline_tried_in_turn() -> None:
    """On the middle of a row the rows are exact: the same answer as casting a ray through each country's edges."""
    generator = np.random.default_rng(5)
    lat = 90 - (generator.integers(0, 180 * CELLS_PER_DEGREE, 400) + 0.5) / CELLS_PER_DEGREE
    latlon = np.stack((lat, generator.uniform(-180, 180, 400)), axis=-1)
    expected = np.full(len(latlon), -1)
    for number, outline in enumerate(load_outlines()):
        crossings = sum((crossings_to_the_west(ring, latlon) for ring in outline.rings), np.zeros(len(latlon), int))
        expected[crossings % 2 == 1] = number
    np.testing.assert_array_equal(country_inside(latlon), expected)


def crossings_to_the_west(ring: np.ndarray, latlon: np.ndarray) -> np.ndarray:
    counts = np.zeros(len(latlon), int)
    near = (latlon[:, 0] >= ring[:, 0].min()) & (latlon[:, 0] <= ring[:, 0].max())
    for place in np.flatnonzero(near):
        lat, lon = latlon[place]
        (lat1, lon1), (lat2, lon2) = ring[:-1].T, ring[1:].T
        spans = (lat1 <= lat) != (lat2 <= lat)
        at = lon1[spans] + (lat - lat1[spans]) / (lat2[spans] - lat1[spans]) * (lon2[spans] - lon1[spans])
        counts[place] = np.count_nonzero(at <= lon)
    return counts


def test_no_two_countries_claim_the_same_ground() -> None:
    stretches = find_stretches(load_outlines())
    assert (stretches.starts <= stretches.stops).all()
    assert (stretches.stops[:-1] <= stretches.starts[1:]).all()


def test_a_hole_is_another_country() -> None:
    def square(side: float) -> np.ndarray:
        return side * np.array([(-1.0, -1.0), (-1, 1), (1, 1), (1, -1), (-1, -1)])

    outer, inner = Outline("Around", "", (square(3), square(1)[::-1])), Outline("Within", "", (square(1),))
    stretches = find_stretches((outer, inner))
    middle_row = 90 * CELLS_PER_DEGREE
    on_row = (stretches.starts // 360 == middle_row).nonzero()
    np.testing.assert_array_equal(stretches.owners[on_row], [0, 1, 0])
    np.testing.assert_allclose(stretches.starts[on_row] % 360, [177, 179, 181])
    np.testing.assert_allclose(stretches.stops[on_row] % 360, [179, 181, 183])


def test_every_country_has_a_continent() -> None:
    continents = dict(zip(country_names(), country_continents(), strict=True))
    assert set(continents.values()) == {"AF", "AN", "AS", "EU", "NA", "OC", "SA"}
    chosen = {name: continents[name] for name in ("Kenya", "Kosovo", "Fiji", "Peru", "Cuba", "Nepal", "Antarctica")}
    assert list(chosen.values()) == ["AF", "EU", "OC", "SA", "NA", "AS", "AN"]
