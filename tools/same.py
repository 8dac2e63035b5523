"""Runs the same small jobs with two source trees and says line by line whether they give the same.

    python tools/same.py OLD NEW [--only embeddings,store] [--full] [--parity FOLDER] [--keep FOLDER]

A tree is a checkout (its `src` is put on PYTHONPATH). Jobs run in processes of their own with one thread, offline and
with caches of their own, through the command line and the public names, so that modules may move between the trees.
Where an option was renamed, several spellings are tried. Exit status 0: everything is the same.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Line = tuple[str, str]
"""What was made, and a short text that is equal when the thing is."""
Job = Callable[[Path], Iterator[Line]]

RECIPE = """
[features]
dtype = "float16"
pca = 24
balanced = true
flattening = 0.25
views = 2
[features.places]
where = "land"
count = 400
elsewhere = 0.25
[[features.sources]]
kind = "blue-marble"
options = { size = 16, km_per_pixel = 7.4 }
encoder = "rcf"
encoder_options = { num_filters = 24 }
[[features.sources]]
kind = "shaded-relief"
options = { size = 16, km_per_pixel = 7.4 }
crop = 12
encoder = "rcf"
encoder_options = { num_filters = 16 }
[encoder]
num_tokens = 8
output_dim = 32
hidden_dim = 48
dropout = 0.1
coordinate_octaves = 4
[[encoder.tessellations]]
num_sites = 64
site_dim = 24
sharpness = 12.0
[sites]
start = "full"
[objective]
contrastive = 1.0
reconstruction = 1.0
alignment = 0.1
distillation = 10.0
position = 0.4
[training]
steps = 30
batch_size = 64
warmup_epochs = 1
evaluate_every = 10
checkpoint_every = 15
record_every = 5
"""
"""A recipe with every part of training in it: two sources, views, components, all terms, a start from the data."""
VARIANTS: dict[str, dict[str, object]] = {
    "fast": {},
    "plain": {"strategy": "plain"},
    "fast top_k=8": {"top_k": 8},
    "plain top_k=8": {"top_k": 8, "strategy": "plain"},
    "fast float64": {"precision": "float64"},
    "plain bfloat16": {"precision": "bfloat16", "strategy": "plain"},
    "fast bfloat16": {"precision": "bfloat16"},
    "fast float16": {"precision": "float16"},
}
BASELINES = ("direct", "wrap", "theory", "grid", "sphereC+", "sphereM+", "harmonics", "harmonics-siren", "fourier")
DIGITS = 6


def digest(array: object) -> str:
    """Type, shape and bytes of an array, or the bytes themselves, in sixteen digits."""
    if isinstance(array, bytes):
        return hashlib.sha256(array).hexdigest()[:16]
    values = np.ascontiguousarray(np.asarray(array))
    return f"{values.dtype}{list(values.shape)} {hashlib.sha256(values.tobytes()).hexdigest()[:16]}"


def places(count: int) -> np.ndarray:
    """Places evenly over the sphere; beyond the first few, also poles and the antimeridian, (count, 2)."""
    rng = np.random.default_rng(count)
    latlon = np.stack((np.rad2deg(np.arcsin(rng.uniform(-1, 1, count))), rng.uniform(-180, 180, count)), axis=-1)
    if count > 100:
        latlon[:4] = (90, 0), (-90, 12.5), (10, 180), (10, -180)
    return latlon


def command(*spellings: list[object]) -> None:
    """Run `tessearth` with the first list of arguments that this tree knows."""
    for arguments in spellings:
        call = [sys.executable, "-m", "tessearth", *map(str, arguments)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if "No such option" not in done.stderr:
            break
    raise RuntimeError(f"{' '.join(call[2:])}: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")


def encode(model: object, source: Path, output: Path) -> None:
    """`tessearth encode` of a table on the CPU."""
    shared = ["encode", "--model", model, "--device", "cpu", "--input", source]
    command(*([*shared, option, output] for option in ("--out", "--output")))


def export(model: str, out: Path) -> None:
    """`tessearth export`, by the suffix of the file."""
    command(["export", "--model", model, "--out", out], ["export", model, "--out", out])


def open_embedder(model: object, **options: object) -> Any:
    """An `Embedder` on the CPU; the plain strategy was once the option `exact`."""
    from tessearth import Embedder

    try:
        return Embedder(model, device="cpu", **options)
    except TypeError:
        plain = options.pop("strategy", "")
        return Embedder(model, device="cpu", exact=plain == "plain", **options)


def embeddings(work: Path) -> Iterator[Line]:
    """Models of both sizes, an untrained one, the parity checkpoints and baselines, one place and many."""
    parity = os.environ["SAME_PARITY"]
    found = [folder.parent for folder in sorted(Path(parity).glob("*/config.json"))] if parity else []
    if not found:
        yield "embeddings: no parity checkpoints (--parity)", "left out"
    for model in ("earth", "earth-small", "untrained", *found):
        for variant, options in VARIANTS.items():
            embed = open_embedder(model, **options)
            for count in (1, 7, 5000) if variant in ("fast", "plain") else (7, 500):
                yield f"{Path(model).name}, {variant}, {count:,} places", digest(embed(places(count)))
        embed = open_embedder(model)
        yield f"{Path(model).name}, fingerprint", embed.fingerprint()[:16]
        for method in ("explain", "support", "nearest_sites"):
            parts = getattr(embed, method)(places(50))
            yield f"{Path(model).name}, {method}", " ".join(digest(part) for part in parts if part is not None)
    for model in BASELINES:
        yield f"baseline {model}", digest(open_embedder(model)(places(500)))


def scores(work: Path) -> Iterator[Line]:
    """`evaluate` of one model and one baseline: every score to six digits, and the tables by class and continent."""
    latlon = places(1500)
    wet, high = np.sin(np.deg2rad(3 * latlon[:, 0])) > 0.2, np.cos(np.deg2rad(latlon[:, 0])) * latlon[:, 1]
    rows = "".join(f"{a!r},{o!r},{w},{h!r}\n" for (a, o), w, h in zip(latlon.tolist(), wet, high.tolist(), strict=True))
    (work / "own.csv").write_text("lat,lon,wet,high\n" + rows)
    own = [f"{work / 'own.csv'}:wet:classify", f"{work / 'own.csv'}:high:regress"]
    tasks = "embedded" if os.environ.get("SAME_FULL") else "koppen,elevation"
    runs = {
        "own tables": [
            "--tasks",
            ",".join(own),
            "--splits",
            "random,10deg,20deg,few100",
            "--probes",
            "ridge,knn",
            "--references",
        ],
        "a network": ["--tasks", own[0], "--splits", "few10", "--probes", "mlp", "--no-references"],
        "embedded": ["--tasks", tasks, "--splits", "10deg,few100", "--probes", "ridge", "--no-references"],
    }
    for name, parts in runs.items():
        out = work / name.replace(" ", "-")
        shared = ["evaluate", "--models", "earth-small,sphereM+", "--maps", "none", "--device", "cpu", "--out", out]
        command([*shared, *parts])
        found = json.loads((out / "results.json").read_text().replace(f"{work}", ""))
        for row in found["scores"]:
            where = ", ".join(str(row[key]) for key in ("model", "task", "draw", "probe"))
            told = [f"{row['score']:.{DIGITS}f}", row["train_rows"], row["test_rows"], _rounded(row["chosen"])]
            yield f"evaluate {name}: {where}", " ".join(map(str, told))
        for part in ("breakdowns", "skipped"):
            yield f"evaluate {name}: {part}", digest(json.dumps(_rounded(found.get(part))).encode())


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


def store(work: Path) -> Iterator[Line]:
    """A feature store by a small recipe."""
    (work / "recipe.toml").write_text(RECIPE)
    command(["features", work / "recipe.toml", "--out", work / "store", "--device", "cpu"])
    for path in sorted((work / "store").rglob("*.np[yz]")):
        for name, array in _arrays(path).items():
            yield f"store: {path.relative_to(work / 'store')} {name}".rstrip(), digest(array)


def weights(work: Path) -> Iterator[Line]:
    """Thirty steps of training with every term, and ten of a baseline; tensors and the sites' trajectories."""
    made_by_old = os.environ.get("SAME_OLD_STORE")
    for name in ("store", *(["the old tree's store"] if made_by_old else [])):
        given, run = Path(made_by_old) if name != "store" and made_by_old else work / "store", work / f"run of {name}"
        command(["pretrain", work / "recipe.toml", "--store", given, "--out", run, "--device", "cpu"])
        label = "pretrain" if name == "store" else f"pretrain with {name}"
        for path in sorted((*run.glob("*.safetensors"), *run.glob("*.npz"))):
            for tensor, array in _arrays(path).items():
                if not path.name.startswith("checkpoint"):
                    yield f"{label}: {path.name} {tensor}", digest(array)
    short = ["--set", "features=none", "--set", "training.steps=10", "--set", "training.batch_size=64"]
    run = work / "run of a baseline"
    parts = ["--store", work / "store", *short, "--out", run, "--device", "cpu"]
    command(["pretrain", "baselines/harmonics-siren", *parts])
    for path in sorted(run.glob("*.safetensors")):
        if not path.name.startswith("checkpoint"):
            yield f"pretrain of a baseline: {path.name}", digest(b"".join(a.tobytes() for a in _arrays(path).values()))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        return {"": np.load(path)}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in sorted(file.files)}
    from safetensors.torch import load_file

    found = sorted(load_file(path).items())
    return {name: (tensor if tensor.dtype.is_floating_point else tensor.long()).numpy() for name, tensor in found}


def rasters(work: Path) -> Iterator[Line]:
    """A box across the antimeridian as GeoTIFF and Zarr in every type, and as H3 cells."""
    import pyarrow.parquet as pq
    import rasterio
    import zarr

    for name, more in {
        "map-int8.tif": ["--resolution", 0.5, "--land"],
        "map-float32.tif": ["--resolution", 1, "--dtype", "float32"],
        "map-int8.zarr": ["--resolution", 1],
        "map-float16.zarr": ["--resolution", 1, "--dtype", "float16"],
        "cells.parquet": ["--h3", 2, "--dtype", "float32"],
        "cells-float16.parquet": ["--h3", 2],
    }.items():
        out = work / name
        shared = ["raster", "--model", "earth-small", "--device", "cpu", "--out", out, "--dims", 12, *more]
        command(*([*shared, option, "160,-50,-170,-20"] for option in ("--bbox", "--box")))
        if out.suffix == ".tif":
            with rasterio.open(out) as file:
                yield f"raster {name}: values", digest(file.read())
                yield (
                    f"raster {name}: profile",
                    f"{file.transform} {file.crs} {file.scales} {file.offsets} {file.nodata}",
                )
        elif out.suffix == ".zarr":
            for key, array in sorted(zarr.open_group(out, mode="r").arrays()):
                yield f"raster {name}: {key}", f"{digest(array[...])} {dict(sorted(array.attrs.items()))}"
        else:
            table = pq.read_table(out)
            yield f"raster {name}: values", digest(repr([table.schema.names, table.to_pydict()]).encode())
        files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
        yield f"(bytes) raster {name}", digest(b"".join(path.read_bytes() for path in files))


def tables(work: Path) -> Iterator[Line]:
    """A Parquet table and a csv encoded into each format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lat, lon = places(3000).T
    pq.write_table(pa.table({"id": np.arange(len(lat)), "lat": lat, "lon": lon}), work / "p.parquet")
    rows = zip(lat.tolist(), lon.tolist(), strict=True)
    (work / "p.csv").write_text("name,lat,lon\n" + "".join(f"n{i},{a!r},{o!r}\n" for i, (a, o) in enumerate(rows)))
    for source in ("p.parquet", "p.csv"):
        for form in ("npy", "npz", "parquet", "jsonl"):
            out = work / f"{source}.{form}"
            encode("earth-small", work / source, out)
            if form in ("npy", "npz"):
                for key, array in _arrays(out).items():
                    yield f"encode {source} as {form}: {key}".rstrip(": "), digest(array)
            elif form == "parquet":
                table = pq.read_table(out)
                columns = [digest(repr(table.column(name).to_pylist()).encode()) for name in table.column_names]
                yield f"encode {source} as parquet", f"{table.schema.remove_metadata()!s} {columns}".replace("\n", ", ")
            if form != "npz":  # a zip file carries the time
                yield f"(bytes) encode {source} as {form}", digest(out.read_bytes())


def exports(work: Path) -> Iterator[Line]:
    """The ONNX file's own answers, and the official weights."""
    import onnxruntime

    out = work / "m.onnx"
    export("earth-small", out)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    kind = np.float64 if "double" in given.type else np.float32
    answers = session.run(None, {given.name: places(500).astype(kind)})
    for output, answer in zip(session.get_outputs(), answers, strict=True):
        yield f"onnx of earth-small: {output.name}", digest(answer)
    encode(out, work / "p.csv", work / "by-onnx.npy")
    yield "encode with the onnx file", digest(np.load(work / "by-onnx.npy"))
    export("earth-small", work / "m.safetensors")
    for name, array in _arrays(work / "m.safetensors").items():
        yield f"safetensors of earth-small: {name}", digest(array)


JOBS: dict[str, Job] = {job.__name__: job for job in (embeddings, tables, rasters, exports, store, weights, scores)}
NEEDS = {"weights": "store", "exports": "tables"}


def run_here(names: list[str], work: Path) -> None:
    """The jobs with the tree on PYTHONPATH, as a JSON object on standard output."""
    warnings.simplefilter("ignore")
    found: dict[str, str] = {}
    for name in names:
        start = time.monotonic()
        try:
            found |= dict(JOBS[name](work))
        except Exception:  # a job that cannot run in one tree is a line, and the others still run
            found[f"{name}: runs to its end"] = traceback.format_exc().splitlines()[-1]
        print(f"  {name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps(found))


def run_tree(tree: Path, names: list[str], work: Path, **more: str) -> dict[str, str]:
    """The jobs with another tree, in a process of its own."""
    work.mkdir(parents=True)
    own = {"PYTHONPATH": str(tree.resolve() / "src"), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TESSEARTH_CACHE": str(work / "cache")}
    print(f"{tree}", file=sys.stderr)
    call = [sys.executable, __file__, "--jobs", ",".join(names), str(work)]
    done = subprocess.run(call, env={**os.environ, **own, **offline, **more}, stdout=subprocess.PIPE, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def report(old: dict[str, str], new: dict[str, str]) -> int:
    """Print every line; how many differ where they must not (other bytes of a container with the same values may)."""
    different = 0
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before == after:
            print(f"same       {name}" if not name.endswith("its end") else f"FAILS BOTH {name}: {after}")
            different += name.endswith("its end")
        elif name.startswith("(bytes)"):
            print(f"other bytes {name[8:]}")
        else:
            different += 1
            print(f"DIFFERENT  {name}\n    old {before}\n    new {after}")
    print(f"\n{len(set(old) | set(new))} compared, {different} differ")
    return different


def main() -> int:
    """Compare two trees, or (for the tool itself) run the jobs of one."""
    if sys.argv[1:2] == ["--jobs"]:
        run_here(sys.argv[2].split(","), Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default=",".join(JOBS), help=f"of {', '.join(JOBS)}")
    parser.add_argument("--full", action="store_true", help="all nine tasks of the embedded benchmark (slow)")
    parser.add_argument("--parity", metavar="FOLDER", default=os.environ.get("TESSEARTH_PARITY", ""))
    parser.add_argument("--keep", type=Path, help="a new folder for what the jobs write")
    chosen = parser.parse_args()
    names = [name for name in JOBS if name in {*(only := chosen.only.split(",")), *(NEEDS.get(one) for one in only)}]
    more = {"SAME_PARITY": chosen.parity, "SAME_FULL": "1" if chosen.full else ""}
    with tempfile.TemporaryDirectory() as folder:
        work = chosen.keep or Path(folder)
        old = run_tree(chosen.old, names, work / "old", **more, SAME_OLD_STORE="")
        # the second run also trains from the first one's store: formats already written stay readable
        new = run_tree(chosen.new, names, work / "new", **more, SAME_OLD_STORE=str(work / "old" / "store"))
        again = {name: value for name, value in new.items() if name.startswith("pretrain with")}
        for name in again:
            old[name] = old.get(name.replace("pretrain with the old tree's store", "pretrain"), "missing")
        return 1 if report(old, new) else 0


if __name__ == "__main__":
    sys.exit(main())
