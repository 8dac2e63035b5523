"""The study behind the released model: many short trainings on the same features, each judged by every task.

    python benchmarks/study.py benchmarks/study/NAME.toml --benchmark FILE --out FOLDER [--workers 3]

A plan (TOML) has `[sources.NAME]` tables (kind, options), `places`, a `[base]` recipe without features, and `[[run]]`
tables: name, `sources` (which ones, default all), `set` (changes to the base, dotted), `seeds`, `flattening` of the
spectrum, `land_only`, `places` (trained on so many, drawn at random), `baseline` (a published encoder instead of ours,
by the name of its recipe), and `keep` for runs whose weights are wanted. Each source's features are computed once; a
run's features are the principal components of its sources joined. With `--store` they are read from a store of
`tessearth features` instead, its sources named in the plan's `names`; a plan without `[base]` builds on the shipped
recipe it calls `recipe`, with its `[changes]`. Results go to FOLDER/results.jsonl, one line per run and seed; every
run's first seed comes before any second.

Files that no package carries are expected in `.carry/` by the plans up to the sixth: `blackmarble.mbtiles` and
`bluemarble.mbtiles` (night lights to zoom 6, days to zoom 6) and `seasons/` (the five nasa-bmng-*_2048.jpg of Debian's
gpredict). tools/imagery fetches the same.

Choices are made on places and splits that no reported number uses: a benchmark file of another seed
(`labels.load_benchmark(seed=1)`), random split 7, 10 degree draws 7 and 8, or those of the plan's `draws`.
`--report` uses the reported ones instead.
"""

import argparse
import json
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from tessearth.evaluation.plan import random_split, regional_split
from tessearth.evaluation.probes import RandomFeatures
from tessearth.imagery.building import build_store
from tessearth.imagery.recipe import FeatureRecipe
from tessearth.imagery.store import FeatureStore
from tessearth.labels import read_benchmark
from tessearth.ridge import fit_ridge_classifier, fit_ridge_regression
from tessearth.settings import from_plain
from tessearth.training.loop import pretrain
from tessearth.training.recipe import Recipe, read_recipe

CLASS, NUMBER = ("koppen", "country"), ("temperature", "elevation", "rain", "population")
CHOOSING, REPORTING = {"random": (7,), "10deg": (7, 8)}, {"random": (42, 43, 44), "10deg": (42, 43, 44, 45, 46)}
FEW = (3000, 300)
PREFIX = 64
MOST_VALIDATION = 4000


class JoinedStore(FeatureStore):
    """The components of several sources as one store, in memory."""

    def __init__(self, components, latlon, validation):
        self.path, self.manifest, self.components = Path("joined"), {"recipe_sha256": "joined"}, components
        self.features = components
        self._latlon, self._validation = latlon, validation

    latlon = property(lambda self: self._latlon)
    training = property(lambda self: np.flatnonzero(~self._validation))
    validation = property(lambda self: np.flatnonzero(self._validation))


def some_of(store, count):
    """A store of so many training places, drawn at random, and of a few validation places."""
    drawn = np.random.default_rng(0).permutation(store.training)[:count]
    rows = np.sort(np.concatenate([drawn, store.validation[:MOST_VALIDATION]]))
    held_out = np.isin(rows, store.validation)
    return JoinedStore(np.ascontiguousarray(store.components[rows]), store.latlon[rows], held_out)


def make_source(arguments):
    """One source's features, in a process of its own."""
    name, source, places, folder = arguments
    recipe = from_plain(FeatureRecipe, {"sources": [source], "places": places})
    begun = time.time()
    store = build_store(recipe, Path(folder) / name, device="cuda" if torch.cuda.is_available() else "cpu", readers=6)
    return name, store.features.shape, round(time.time() - begun, 1)


@torch.no_grad()
def join(folder, names, width, device, flattening, columns):
    """The leading components of several sources' features joined, each source divided by its own deviation.

    `flattening` divides a component by so high a power of its deviation: 0 keeps the natural spectrum, 1 whitens.
    `columns` gives a source's features, (places, width).
    """
    path = folder / f"{'+'.join(names)}-{width}-{flattening}.npy"
    if path.exists():
        return path
    rows, parts = 20_000, []
    for name in names:
        part = torch.from_numpy(np.ascontiguousarray(columns(name))).to(device)
        mean = part.float().mean(0)
        scale = torch.stack([(some.float() - mean).square().mean(0) for some in part.split(rows)]).mean(0).sum().sqrt()
        parts.append((part, mean, scale))
    gram = 0
    for start in range(0, len(parts[0][0]), rows):
        x = torch.cat([(p[start : start + rows].float() - m) / s for p, m, s in parts], dim=1).double()
        gram = gram + x.T @ x
    variance, directions = torch.linalg.eigh(gram)
    deviation = (variance.flip(0)[:width] / variance.max()).clamp_min(1e-9).sqrt()
    chosen = (directions.flip(1)[:, :width] / deviation**flattening).float()
    out = [
        (torch.cat([(p[i : i + rows].float() - m) / s for p, m, s in parts], dim=1) @ chosen).half().cpu()
        for i in range(0, len(parts[0][0]), rows)
    ]
    kept = float(variance.flip(0)[:width].sum() / variance.sum())
    print(f"{path.name}: {kept:.3f} of the variance in {width} components", flush=True)
    scale = 100.0  # float16 keeps its digits
    np.save(path, (torch.cat(out) * scale).numpy()[:, None])
    return path


def train(job):
    """One run with one seed: train, embed, score."""
    torch.set_num_threads(4)
    plan, run, seed, folder, benchmark, out, reporting, kept = job
    begun = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = changed(plan["base"], {**run.get("set", {}), "training.seed": seed})
    if run.get("baseline"):
        recipe = {key: value for key, value in recipe.items() if key not in ("encoder", "sites")}
        recipe["baseline"] = load_recipe_table(f"baselines/{run['baseline']}")["baseline"]
    if run.get("reference"):
        features = RandomFeatures(seed=seed)
        embed, took = features.embed, 0.0
    else:
        recipe = from_plain(Recipe, recipe)
        places = np.load(Path(folder) / "places.npz")
        held_out = places["validation"].copy()
        if run.get("land_only"):
            rest = round(plan["places"].get("elsewhere", 0.0) * len(held_out))
            held_out[len(held_out) - rest :] = True
        store = JoinedStore(np.load(run["path"], mmap_mode="r"), places["latlon"], held_out)
        if run.get("places"):
            store = some_of(store, run["places"])
        target = Path(out) / f"{run['name']}-{seed}"
        result = pretrain(recipe, target, store=store, device=device)
        took = time.time() - begun
        from tessearth import Embedder
        from tessearth.encoder.weights import load_weights, save

        last = target / "weights" / "last.safetensors"
        encoder = None if run.get("baseline") else load_weights(last)
        embed = Embedder(str(last) if encoder is None else encoder, device=device)
        if run.get("keep") and encoder is not None:
            save(encoder, Path(kept) / f"{run['name']}-{seed}.safetensors", dtype=torch.float16)
    draws = REPORTING if reporting else plan.get("draws", CHOOSING)
    scores = score_all(embed, read_benchmark(benchmark), draws, device)
    line = {
        "run": run["name"],
        "seed": seed,
        "train_s": round(took, 1),
        "all_s": round(time.time() - begun, 1),
        **scores,
    }
    if not run.get("reference"):
        line["validation"] = {k: v for k, v in result.validation.items() if not isinstance(v, dict)}
    return line


def load_recipe_table(name):
    """A shipped recipe as a plain table, what it builds on merged in, without its features."""
    table = read_recipe(name).to_dict()
    table.pop("features", None)
    return {key: value for key, value in table.items() if value is not None}


def changed(base, changes):
    """The base recipe with dotted keys replaced."""
    recipe = json.loads(json.dumps(base))
    for key, value in changes.items():
        *path, last = key.split(".")
        table = recipe
        for part in path:
            table = table[int(part)] if isinstance(table, list) else table.setdefault(part, {})
        table[last] = value
    return recipe


def score_all(embed, tables, draws, device):
    """Every task under every split; few labels and a prefix of the dimensions on both means."""
    embedded, tasks = {}, {}
    for name, table in tables.items():
        key = id(table.latlon)
        if key not in embedded:
            embedded[key] = torch.from_numpy(np.asarray(embed(table.latlon), dtype=np.float32)).to(device)
        known = table.known
        tasks[name] = (
            embedded[key][torch.from_numpy(known).to(device)],
            table.values[known],
            table.kind,
            table.latlon[known],
        )
    result = {}
    for split, seeds in draws.items():
        scores, few, prefix = {}, {n: {} for n in FEW}, {}
        for name, (x, y, kind, latlon) in tasks.items():
            for seed in seeds:
                try:
                    cut = cut_by(split, latlon, seed)
                except Exception:  # one state's houses do not fill many blocks
                    continue
                scores.setdefault(name, []).append(score(x, y, kind, cut.train, cut.test, device))
                if name in CLASS + NUMBER:
                    prefix.setdefault(name, []).append(score(x[:, :PREFIX], y, kind, cut.train, cut.test, device))
                    for count in FEW:
                        order = np.random.default_rng(seed).permutation(cut.train)[:count]
                        few[count].setdefault(name, []).append(score(x, y, kind, order, cut.test, device))
        result[split] = {name: round(float(np.mean(values)), 4) for name, values in scores.items()}
        result[f"{split}-means"] = means(scores)
        result[f"{split}-prefix{PREFIX}"] = means(prefix)
        for count in FEW:
            result[f"{split}-few{count}"] = means(few[count])
    return result


def cut_by(split, latlon, seed):
    """Training and test rows of one draw of a split."""
    return random_split(len(latlon), seed) if split == "random" else regional_split(latlon, 10, seed)


def task_score(embedded, table, split, seeds, device):
    """One task's mean score over the draws of a split; `embedded` holds every place of the table."""
    x, y, latlon = embedded[table.known], table.values[table.known], table.latlon[table.known]
    cuts = [cut_by(split, latlon, seed) for seed in seeds]
    x = torch.as_tensor(x, device=device)
    return float(np.mean([score(x, y, table.kind, cut.train, cut.test, device) for cut in cuts]))


def means(scores):
    return [round(float(np.mean([np.mean(scores[name]) for name in names])), 4) for names in (CLASS, NUMBER)]


def score(x, y, kind, train, test, device):
    if kind == "classify":
        try:
            found = fit_ridge_classifier(x[train], y[train], device=device).predict(x[test])
        except Exception:
            return float("nan")
        return float((found == y[test]).mean())
    fit = fit_ridge_regression(x[train], y[train], device=device)
    found = fit.predict(x[test])[:, 0]
    return float(1 - ((y[test] - found) ** 2).sum() / ((y[test] - y[test].mean()) ** 2).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan")
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--features", default="/tmp/study")
    parser.add_argument("--store", help="a store of `tessearth features` to take the features from")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="score on the reported splits")
    parser.add_argument("--stop-after", type=float, default=1e9, help="start no run after so many seconds")
    arguments = parser.parse_args()
    begun = time.time()
    plan = tomllib.loads(Path(arguments.plan).read_text())
    folder, out = Path(arguments.features), Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    context = get_context("spawn")
    if "recipe" in plan:
        plan["base"] = changed(load_recipe_table(plan["recipe"]), plan.get("changes", {}))
    if arguments.store:
        names, latlon, held, columns = open_store(plan, arguments.store)
    else:
        names, latlon, held, columns = make_sources(plan, folder, context)
    np.savez(folder / "places.npz", latlon=latlon, validation=held)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for run in plan["run"]:
        width = run.get("components", changed(plan["base"], run.get("set", {}))["encoder"].get("output_dim", 512))
        if not run.get("reference"):
            flattening = run.get("flattening", plan.get("flattening", 0.0))
            run["path"] = str(join(folder, list(run.get("sources", names)), width, device, flattening, columns))
    torch.cuda.empty_cache() if device == "cuda" else None
    print(f"features ready after {time.time() - begun:.0f} s", flush=True)
    seeds = lambda run: run.get("seeds", plan.get("seeds", [0]))  # noqa: E731
    turns = [(turn, run, seed) for run in plan["run"] for turn, seed in enumerate(seeds(run))]
    jobs = [
        (plan, run, seed, str(folder), arguments.benchmark, str(folder / "runs"), arguments.report, str(out))
        for _, run, seed in sorted(turns, key=lambda turn: turn[0])
    ]
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool, open(out / "results.jsonl", "a") as log:
        waiting = {pool.submit(guarded, job, begun + arguments.stop_after): job for job in jobs}
        for done in as_completed(waiting):
            line = done.result()
            log.write(json.dumps(line) + "\n")
            log.flush()
            print(shown(line), flush=True)


def make_sources(plan, folder, context):
    """Every source's features in a store of its own, made side by side."""
    wanted = {name: plan["sources"][name] for run in plan["run"] for name in run.get("sources", plan["sources"])}
    with ProcessPoolExecutor(max(1, len(wanted)), mp_context=context) as pool:
        jobs = [(name, source, plan["places"], folder) for name, source in wanted.items()]
        for name, shape, took in pool.map(make_source, jobs):
            print(f"{name}: {shape} in {took} s", flush=True)
    first = FeatureStore(folder / next(iter(wanted)), verify=False)
    columns = lambda name: np.load(folder / name / "features.npy", mmap_mode="r")[:, 0]  # noqa: E731
    return list(plan["sources"]), first.latlon, held_out(first), columns


def open_store(plan, path):
    """The sources of a ready store under the plan's names."""
    store = FeatureStore(path, verify=False)
    ends = np.cumsum(store.manifest["widths"])
    where = dict(zip(plan["names"], zip(ends - store.manifest["widths"], ends, strict=True), strict=True))
    return plan["names"], store.latlon, held_out(store), lambda name: store.features[:, 0, slice(*where[name])]


def held_out(store):
    held = np.zeros(len(store.latlon), dtype=bool)
    held[store.validation] = True
    return held


def guarded(job, last_start):
    if time.time() > last_start:
        return {"run": job[1]["name"], "seed": job[2], "error": "no time left"}
    try:
        return train(job)
    except Exception as error:
        return {"run": job[1]["name"], "seed": job[2], "error": repr(error)[:500]}


def shown(line):
    if "error" in line:
        return f"{line['run']:<24} {line['seed']} {line['error']}"
    pair = lambda key: "/".join(f"{value:.3f}" for value in line[key])  # noqa: E731
    tasks = lambda key: " ".join(f"{value:.3f}" for value in line[key].values())  # noqa: E731
    return (
        f"{line['run']:<24} {line['seed']} {line['train_s']:>5}s r {pair('random-means')} 10 {pair('10deg-means')}"
        f" | r {tasks('random')} | 10 {tasks('10deg')} | few {pair('random-few3000')} {pair('random-few300')}"
        f" 10few {pair('10deg-few3000')} {pair('10deg-few300')}"
        f" | p64 {pair('random-prefix64')} {pair('10deg-prefix64')}"
    )


if __name__ == "__main__":
    main()
