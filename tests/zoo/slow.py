"""Slow plain references: one place at a time, straight from the published formulas, numpy and loops only."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Weights = Mapping[str, Vector]

PLACES = np.array(
    [
        (48.8566, 2.3522),
        (-33.8688, 151.2093),
        (90.0, 0.0),
        (-90.0, 37.0),
        (0.0, 0.0),
        (0.0, -180.0),
        (66.5, 179.999),
        (-17.7, -179.5),
        (19.4, -99.1),
        (64.1, -21.9),
    ]
)


def scales(count: int, low: float, high: float) -> list[float]:
    return [low * (high / low) ** (s / (count - 1)) for s in range(count)]


def direct(lat: float, lon: float) -> list[float]:
    return [lat / 90, lon / 180]


def cartesian3d(lat: float, lon: float) -> list[float]:
    phi, lam = math.radians(lat), math.radians(lon)
    return [math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)]


def wrap(lat: float, lon: float) -> list[float]:
    east, north = lon / 180, lat / 90
    return [math.sin(math.pi * east), math.sin(math.pi * north), math.cos(math.pi * east), math.cos(math.pi * north)]


def grid(lat: float, lon: float, count: int = 16, low: float = 1.0, high: float = 360.0) -> list[float]:
    out = []
    for coordinate in (lon, lat):
        for radius in scales(count, low, high):
            out += [math.sin(coordinate / radius), math.cos(coordinate / radius)]
    return out


def theory(lat: float, lon: float) -> list[float]:
    out = []
    for radius in scales(16, 1.0, 360.0):
        for turn in (0, 120, 240):
            along = lon * math.cos(math.radians(turn)) + lat * math.sin(math.radians(turn))
            out += [math.cos(along / radius), math.sin(along / radius)]
    return out


def _by_feature(features: list[list[float]]) -> list[float]:
    """Rows of one scale each, read feature by feature."""
    return [row[i] for i in range(len(features[0])) for row in features]


def _sphere(lat: float, lon: float, family: str, plus: bool) -> list[float]:
    phi, lam = math.radians(lat), math.radians(lon)
    rows = []
    for radius in scales(32, 0.001, 1.0):
        p, q = phi / radius, lam / radius
        if family == "C":
            row = [math.sin(p), math.cos(p) * math.cos(q), math.cos(p) * math.sin(q)]
        else:
            row = [math.sin(p), math.cos(p) * math.cos(lam), math.cos(phi) * math.cos(q)]
            row += [math.cos(p) * math.sin(lam), math.cos(phi) * math.sin(q)]
        rows.append(row + ([math.cos(p), math.sin(q), math.cos(q)] if plus else []))
    return _by_feature(rows)


POSITIONS: dict[str, Callable[[float, float], list[float]]] = {
    "direct": direct,
    "cartesian3d": cartesian3d,
    "wrap": wrap,
    "grid": grid,
    "theory": theory,
    "sphereC": lambda lat, lon: _sphere(lat, lon, "C", False),
    "sphereC+": lambda lat, lon: _sphere(lat, lon, "C", True),
    "sphereM": lambda lat, lon: _sphere(lat, lon, "M", False),
    "sphereM+": lambda lat, lon: _sphere(lat, lon, "M", True),
}


def complex_harmonic(degree: int, order: int, from_pole: float, around: float) -> complex:
    import scipy.special

    if hasattr(scipy.special, "sph_harm_y"):
        return complex(scipy.special.sph_harm_y(degree, order, from_pole, around))
    return complex(scipy.special.sph_harm(order, degree, around, from_pole))  # its name before scipy 1.15


def harmonics(lat: float, lon: float, degrees: int, *, satclip: bool = False) -> Vector:
    """Real harmonics from scipy's complex ones, in our angles or in SatCLIP's (latitude + 90, longitude + 180)."""
    from_pole = math.radians(lat + 90 if satclip else 90 - lat)
    around = math.radians(lon + 180 if satclip else lon)
    out = []
    for degree in range(degrees):
        for m in range(-degree, degree + 1):
            value = complex_harmonic(degree, abs(m), from_pole, around)
            part = value.imag if m < 0 else value.real
            out.append(part * (math.sqrt(2) if m else 1.0) * (-1) ** abs(m))
    return np.array(out)


def linear(x: Vector, weights: Weights, name: str) -> Vector:
    out = np.array([float(np.dot(row, x)) for row in weights[f"{name}.weight"]])
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0.0)


def gelu(x: Vector) -> Vector:
    return np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])


def leaky(x: Vector) -> Vector:
    return np.where(x > 0, x, 0.2 * x)


def norm(x: Vector, weights: Weights, name: str) -> Vector:
    unit = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def equal_earth(lat: float, lon: float) -> Vector:
    """Equal Earth on a sphere of radius 1, scaled as GeoCLIP does."""
    t = math.asin(math.sqrt(3) / 2 * math.sin(math.radians(lat)))
    powers = {9: 0.003796, 7: 0.000893, 3: -0.081106, 1: 1.340264}
    y = sum(a * t**n for n, a in powers.items())
    slope = sum(n * a * t ** (n - 1) for n, a in powers.items())
    x = 2 * math.sqrt(3) * math.radians(lon) * math.cos(t) / (3 * slope)
    return np.array([x, y]) * 66.50336 / 180


def fourier_features(lat: float, lon: float, frequencies: Vector) -> Vector:
    angles = [2 * math.pi * float(np.dot(b, equal_earth(lat, lon))) for b in frequencies]
    return np.array([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
