"""Coordinates as anything a program may hand over: lists, arrays of any type, tensors, frames, text; written as JSON.

{"call": "embed", "points": [[48.9, 2.4]]}; {"$": "array", "dtype": "float16", "of": [...]} stands for what JSON lacks.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutation import VALUES, damage_tree
from tests.fuzz.surfaces import Prepared, Surface

TYPES = (
    *("float64", "float32", "float16", "int64", "uint8", "bool", "complex128", "object", "str", "S8", "datetime64[s]"),
    *("timedelta64[s]", "longdouble", ">f8", "U4"),
)
TENSOR_TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn", "int8")
PLAIN: tuple[Any, ...] = ([[48.9, 2.4], [-33.9, 151.2]], [48.9, 2.4], [[90, 180], [-90, -180], [0, 360]])
SPECIAL: tuple[Any, ...] = (
    *({"$": "array", "dtype": name, "of": [[48.9, 2.4], [1, 2]]} for name in TYPES),
    *({"$": "tensor", "dtype": name, "of": [[48.9, 2.4], [1, 2]]} for name in TENSOR_TYPES),
    *(
        {"$": name, "of": [[48.9, 2.4]]}
        for name in ("tuple", "set", "masked", "frame", "arrow", "iterator", "structured")
    ),
    *({"$": "deep", "of": depth} for depth in (10, 32, 33, 64, 65, 200, 5000)),
    *(
        {"$": "zeros", "of": shape}
        for shape in ([0], [2], [0, 2], [2, 0], [0, 0], [3, 0, 2], [1, 1, 1, 2], [2, 3], [3])
    ),
    *({"$": "digits", "of": count} for count in (20, 400, 5000)),
    {"$": "bytes", "of": "abcd"},
)
DEEPEST_FRAME = 16
"""Levels of lists a frame is made of; pandas itself crashes on Arrow arrays under forty, before it comes to us."""
CALLS = ("embed", "named", "one", "two", "frame", "xyz", "keys", "split", "sites", "explain", "support", "onnx", "text")


def prepare(folder: Path) -> Prepared:
    """One valid input for every call."""
    import torch

    torch.set_num_threads(1)
    seeds = [{"call": "embed", "points": points} for points in PLAIN]
    seeds += [{"call": call, "points": PLAIN[0]} for call in ("keys", "split", "sites", "explain", "support")]
    seeds += [{"call": "two", "lat": [1, 20.5], "lon": [30, -179.9]}, {"call": "two", "lat": 1, "lon": 30}]
    seeds += [{"call": "xyz", "points": [[1, 0, 0], [0.5, 0.5, 3]]}]
    seeds += [{"call": "text", "lat": "48.9", "lon": "2.4"}]
    seeds += [{"call": "frame", "points": {"lat": [1, 20.5], "lon": [30, -179.9], "name": ["a", "b"]}}]
    point = {"type": "Point", "coordinates": [2.4, 48.9]}
    collection = {"type": "FeatureCollection", "features": [{"type": "Feature", "geometry": point}, point]}
    seeds += [{"call": "embed", "points": shape} for shape in (point, collection, [point, point])]
    seeds += [{"call": "embed", "points": rows} for rows in ({"lat": [1, "20.5"], "lon": [30, 3]}, [{"y": 1, "x": 30}])]
    seeds += [{"call": "named", "points": {"a": [1, None], "b": [30, 3]}, "lat": "a", "lon": "b", "on_bad": "null"}]
    calls = _calls()

    def run(content: bytes) -> None:
        case = json.loads(content)
        if isinstance(case, dict) and calls.get(str(case.get("call"))) is not None:
            calls[case["call"]](_build(case))

    return Prepared([json.dumps(seed).encode() for seed in seeds], run)


def _calls() -> dict[str, Callable[[dict[str, Any]], object]]:
    """What a case may ask for, each as a user would call it."""
    import pandas

    from tessearth import Embedder
    from tessearth.sphere.sampling import place_keys, split_places
    from tests.fuzz.surfaces.models import small_encoder

    embedder = Embedder(small_encoder(), device="cpu")
    exact = Embedder(small_encoder(), device="cpu", precision="float64")

    def frame(case: dict[str, Any]) -> object:
        if _depth(case.get("points")) > DEEPEST_FRAME:
            return None
        try:
            table = pandas.DataFrame(case.get("points"))
        except Exception:
            return None  # no frame, so nothing of ours was asked
        return embedder(table)

    return {
        "embed": lambda case: (embedder(case.get("points")), exact(case.get("points"))),
        "named": lambda case: embedder(
            case.get("points"), lat=case.get("lat"), lon=case.get("lon"), on_bad=case.get("on_bad", "error")
        ),
        "two": lambda case: embedder(lat=case.get("lat"), lon=case.get("lon")),
        "frame": frame,
        "xyz": lambda case: embedder(xyz=case.get("points")),
        "keys": lambda case: place_keys(case.get("points")),
        "split": lambda case: split_places(case.get("points")),
        "sites": lambda case: embedder.nearest_sites(case.get("points")),
        "explain": lambda case: embedder.explain(case.get("points")),
        "support": lambda case: embedder.support(case.get("points")),
        "text": lambda case: embedder(lat=case.get("lat"), lon=case.get("lon")),
    }


def _depth(tree: Any) -> int:
    """How many levels of lists a tree has, as far as it matters here."""
    level, depth = [tree], 0
    while level and depth <= DEEPEST_FRAME:
        lists = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, list | dict)]
        level, depth = [item for items in lists for item in items], depth + 1
    return depth


def _build(tree: Any) -> Any:
    """The value a tree stands for; what cannot be built stands for itself."""
    if isinstance(tree, list):
        return [_build(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" not in tree:
        return {key: _build(value) for key, value in tree.items()}
    make = MAKERS.get(str(tree["$"]))
    try:
        return tree if make is None else make(_build(tree.get("of")), tree.get("dtype"))
    except Exception:
        return str(tree)


def _array(of: Any, dtype: Any) -> Any:
    import numpy as np

    return np.asarray(of, dtype=dtype)


def _tensor(of: Any, dtype: Any) -> Any:
    import torch

    made = torch.tensor(of, dtype=torch.float64).to(getattr(torch, dtype))
    return made.requires_grad_() if made.is_floating_point() and made.dtype.itemsize > 1 else made


def _frame(of: Any, dtype: Any) -> Any:
    import pandas

    return pandas.DataFrame(of, columns=["lat", "lon"])


def _arrow(of: Any, dtype: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.asarray(of, dtype=float).tolist())  # Arrow itself gives up on types thousands of levels deep


def _masked(of: Any, dtype: Any) -> Any:
    import numpy as np

    return np.ma.masked_greater(np.asarray(of, dtype=float), 10)


def _structured(of: Any, dtype: Any) -> Any:
    import numpy as np

    return np.array([tuple(row) for row in of], dtype=[("lat", "f8"), ("lon", "f8")])


def _zeros(of: Any, dtype: Any) -> Any:
    import numpy as np

    return np.zeros([min(int(side), 50) for side in of][:3])  # more sides would be millions of places, all asked for


def _deep(of: Any, dtype: Any) -> Any:
    nest: Any = 1.0
    for _ in range(min(int(of), 5000)):
        nest = [nest]
    return nest


MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "array": _array,
    "tensor": _tensor,
    "frame": _frame,
    "arrow": _arrow,
    "masked": _masked,
    "structured": _structured,
    "zeros": _zeros,
    "deep": _deep,
    "tuple": lambda of, dtype: tuple(map(tuple, of)),
    "set": lambda of, dtype: {tuple(row) for row in of},
    "iterator": lambda of, dtype: iter(of),
    "digits": lambda of, dtype: 10 ** min(int(of), 5000),
    "bytes": lambda of, dtype: str(of).encode(),
}


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Damage the tree of a case, with special values among what is put in."""
    case = json.loads(random.choice(seeds))
    for key in ("points", "lat", "lon"):
        if key in case and random.random() < 0.3:
            case[key] = random.choice((*SPECIAL, *PLAIN))
        if key in case and random.random() < 0.9:
            case[key] = damage_tree(random, case[key], (*VALUES, *SPECIAL))
    return json.dumps(case).encode("utf-8", "surrogatepass")


SURFACE = Surface("coordinates", prepare, mutate)
