"""The sphere: degrees and unit vectors, distances, lattices, cells numbered along a curve.

`latlon` is always degrees, latitude first, shape (..., 2); `xyz` is always unit vectors, shape (..., 3).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

EARTH_RADIUS_KM = 6371.0088
"""The mean radius of the Earth (IUGG)."""
GOLDEN_RATIO = (1 + math.sqrt(5)) / 2
ROUNDING = 1e-6
"""Radians by which a cell's cap is widened, for points that rounding puts on the wrong side of an edge."""
DEPTH = 16
"""How often a face of the cube is quartered at most: its finest cells are 150 m wide."""


def latlon_to_xyz(latlon: Tensor) -> Tensor:
    """Place geographic coordinates on the unit sphere: degrees, shape (..., 2), to unit vectors, shape (..., 3)."""
    lat, lon = latlon.deg2rad().unbind(-1)
    return torch.stack((lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()), dim=-1)


def xyz_to_latlon(xyz: Tensor) -> Tensor:
    """Read degrees off directions of any length, shape (..., 3) to (..., 2), longitude in (-180, 180]."""
    x, y, z = xyz.unbind(-1)
    lat = torch.atan2(z, torch.hypot(x, y))
    lon = torch.atan2(y, x)
    return torch.stack((lat, lon), dim=-1).rad2deg()


def wrap_longitude(lon: Tensor) -> Tensor:
    """Bring longitudes of any turn into [-180, 180)."""
    return torch.remainder(lon + 180.0, 360.0) - 180.0


def angular_distance(a: Tensor, b: Tensor) -> Tensor:
    """The angle between unit vectors in radians, broadcasting over leading dimensions.

    atan2(|a x b|, a . b) keeps its precision for neighbours and for antipodes, where acos(a . b) loses half its digits.
    """
    sine = torch.linalg.vector_norm(torch.linalg.cross(a, b, dim=-1), dim=-1)
    return torch.atan2(sine, (a * b).sum(-1))


def fibonacci_lattice(num_points: int) -> Tensor:
    """Spread points evenly over the sphere, (num_points, 3) in float64, from the north pole down.

    theta_i = 2 pi i / golden ratio, z_i = 1 - (2 i + 1) / n.
    """
    index = torch.arange(num_points, dtype=torch.float64)
    theta = 2 * math.pi * torch.remainder(index / GOLDEN_RATIO, 1.0)
    z = 1 - (2 * index + 1) / num_points
    radius = torch.sqrt(1 - z * z)
    return torch.stack((radius * theta.cos(), radius * theta.sin(), z), dim=-1)


class CubeCells:
    """The sphere as a cube's six faces, each cut into side x side cells of nearly equal size.

    A cell's edges are great circles, so its point farthest from the centre is a corner. Poles and antimeridian are
    ordinary places.
    """

    def __init__(self, side: int) -> None:
        self.side = side
        self.count = 6 * side * side

    def find(self, xyz: Tensor) -> Tensor:
        """The cell of each direction, (N, 3) -> (N,) whole numbers below `count`."""
        axis = xyz.abs().argmax(dim=-1, keepdim=True)
        height = xyz.gather(-1, axis)
        others = torch.cat((xyz.gather(-1, (axis + 1) % 3), xyz.gather(-1, (axis + 2) % 3)), dim=-1)
        warped = torch.atan(others / height.abs()) * (4 / math.pi)
        steps = ((warped + 1) * (self.side / 2)).long().clamp_(0, self.side - 1)
        face = 2 * axis[:, 0] + (height[:, 0] < 0)
        return (face * self.side + steps[:, 0]) * self.side + steps[:, 1]

    def points(self, cells: Tensor, within: Tensor) -> Tensor:
        """Directions at positions within cells, (M,) and (P, 2) in [0, 1] -> (M, P, 3) in float64."""
        face, rest = cells // self.side**2, cells % self.side**2
        steps = torch.stack((rest // self.side, rest % self.side), dim=-1)[:, None, :] + within  # (M, P, 2)
        flat = torch.tan((steps * (2 / self.side) - 1) * (math.pi / 4))
        count = len(within)
        axis, height = (face // 2)[:, None, None].expand(-1, count, 1), (1.0 - 2.0 * (face % 2).double())
        xyz = torch.empty(len(cells), count, 3, dtype=torch.float64, device=cells.device)
        xyz.scatter_(-1, axis, height[:, None, None].expand(-1, count, 1))
        xyz.scatter_(-1, (axis + 1) % 3, flat[..., :1])
        xyz.scatter_(-1, (axis + 2) % 3, flat[..., 1:])
        return torch.nn.functional.normalize(xyz, dim=-1)

    def caps(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Centres, (M, 3), and radii, (M,) in radians, of caps around the cells, in float64."""
        corners = torch.tensor([(0.5, 0.5), (0, 0), (0, 1), (1, 0), (1, 1)], dtype=torch.float64, device=cells.device)
        xyz = self.points(cells, corners)
        half_chord = (xyz[:, 1:] - xyz[:, :1]).norm(dim=-1).amax(dim=-1) / 2
        return xyz[:, 0], 2 * torch.asin(half_chord.clamp(max=1)) + ROUNDING

    def keys(self, cells: Tensor) -> Tensor:
        """The rank of cells along a curve that fills each quarter of a cell before the next, for sides 2^depth.

        The quarters of the cell with key k at one depth have the keys 4 k to 4 k + 3 at the next.
        """
        face, rest = cells // self.side**2, cells % self.side**2
        return face * self.side**2 + (spread_bits(rest // self.side) << 1) + spread_bits(rest % self.side)

    def of_keys(self, keys: Tensor) -> Tensor:
        """The cells of keys; `keys` turned round."""
        face, rest = keys // self.side**2, keys % self.side**2
        return (face * self.side + gather_bits(rest >> 1)) * self.side + gather_bits(rest)


def cell_keys(xyz: Tensor) -> Tensor:
    """The key of the finest cell that each direction lies in, (N, 3) -> (N,)."""
    cells = CubeCells(2**DEPTH)
    return cells.keys(cells.find(xyz))


def cell_key(here: Sequence[float]) -> int:
    """`cell_keys` of one direction, (3,), in plain numbers, without a tensor's fixed costs."""
    side: int = 2**DEPTH
    axis = max(range(3), key=lambda i: abs(here[i]))
    height = here[axis]
    key = 2 * axis + (height < 0)
    steps = [math.atan(here[(axis + i) % 3] / abs(height)) * (4 / math.pi) + 1 for i in (1, 2)]
    first, second = (min(max(int(step * (side / 2)), 0), side - 1) for step in steps)
    spread = [SPREAD[number >> 8] << 16 | SPREAD[number & 255] for number in (first, second)]
    return key * side**2 + (spread[0] << 1) + spread[1]


SPREAD = [sum((number >> bit & 1) << 2 * bit for bit in range(8)) for number in range(256)]
"""`spread_bits` of numbers of eight bits."""
MASKS = (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F, 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0xFFFFFFFF)


def spread_bits(numbers: Tensor) -> Tensor:
    """Bit b of whole numbers below 2^31 goes to bit 2 b."""
    for step in (4, 3, 2, 1, 0):
        numbers = (numbers | (numbers << 2**step)) & MASKS[step]
    return numbers


def gather_bits(numbers: Tensor) -> Tensor:
    """Bit 2 b of whole numbers goes to bit b; odd bits are dropped."""
    numbers = numbers & MASKS[0]
    for step in range(5):
        numbers = (numbers | (numbers >> 2**step)) & MASKS[step + 1]
    return numbers
