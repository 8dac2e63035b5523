"""Studies of levels, growth and heads: features made on the GPU once, then many trainings, each scored on every task.

    PYTHONPATH=src python3 benchmarks/levels_study.py PLAN.toml --imagery FOLDER --benchmark FILE --out FOLDER

A plan of benchmarks/study has `features`, the recipe whose sources are looked at, with `[feature_changes]`; `recipe`,
the one that is trained, with `[changes]`; and `[[run]]` tables: name, `set` (changes to the recipe, dotted), `seeds`,
`after` (a run that must be finished first; `{after}` in `set` is its folder), `baseline` (the recipe of another
encoder), `places` (so many of the training places), `keep` for runs whose weights are wanted. Lines of results.jsonl
hold scores on choosing places (or, with --report, on reported ones), the validation, and the steps a second of the run;
`read_off` is the share of the image features' variance over held-out land that a ridge regression cannot read off the
embedding, of the components as trained on and of their natural spectrum. `brief` leaves out scores by few labels. The
imagery lies in one folder, as for benchmarks/features_gpu.py.
"""

import argparse
import dataclasses
import json
import time
import tomllib
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import study
import torch
from features_gpu import find_in
from study import CHOOSING, REPORTING, JoinedStore, changed, load_recipe_table, score_all, some_of

from tessearth import Embedder
from tessearth.encoder.weights import load_weights, save
from tessearth.imagery import FeatureRecipe, compute_features
from tessearth.labels import read_benchmark
from tessearth.ridge import ridge_path
from tessearth.settings import from_plain
from tessearth.sphere import is_inhabited_land
from tessearth.training import finished
from tessearth.training.loop import pretrain
from tessearth.training.recipe import Recipe, read_recipe


def make_features(plan, imagery, folder, device):
    """The features of the plan's places as files that every process maps."""
    begun = time.time()
    table = changed(read_recipe(plan["features"]).to_dict()["features"], plan.get("feature_changes", {}))
    recipe = from_plain(FeatureRecipe, table)
    recipe = dataclasses.replace(recipe, sources=tuple(find_in(imagery, source) for source in recipe.sources))
    made = compute_features(recipe, device=torch.device(device))
    np.save(folder / "features.npy", made.array.cpu().numpy())
    held_out = np.isin(np.arange(len(made.latlon)), made.validation)
    np.savez(folder / "places.npz", latlon=made.latlon, validation=held_out)
    print(f"features {made.array.shape} after {time.time() - begun:.0f} s", flush=True)


def open_features(folder, run):
    """The features as a store."""
    places = np.load(folder / "places.npz")
    store = JoinedStore(np.load(folder / "features.npy", mmap_mode="r"), places["latlon"], places["validation"])
    store.path = folder
    return some_of(store, run["places"]) if run.get("places") else store


READ_PLACES = 100_000


def read_off(embed, store, flattening, device):
    """What a ridge regression on embeddings leaves of the components' variance over held-out land."""
    rng, parts = np.random.default_rng(0), []
    for every, most in ((store.training, READ_PLACES), (store.validation, READ_PLACES // 4)):
        some = np.sort(rng.permutation(every)[: 2 * most])
        rows = some[is_inhabited_land(store.latlon[some])][:most]
        x, y = embed(store.latlon[rows]), store.components[rows].reshape(len(rows), -1)
        parts.append([torch.from_numpy(np.asarray(part, np.float32)).to(device) for part in (x, y)])
    (x, y), (x_new, y_new) = parts
    ((slope, bias),) = ridge_path(x, y, (1e-4 * len(x) * float(x.double().square().mean()),))
    left, variance = (x_new @ slope.to(x_new) + bias.to(x_new) - y_new).square().mean(0), y_new.var(0)
    natural = variance ** (1 / (1 - flattening))
    shares = {"components": left.sum() / variance.sum(), "natural": (left / variance * natural).sum() / natural.sum()}
    return {name: round(float(share), 4) for name, share in shares.items()}


def train(job):
    """One run with one seed: train, embed, score."""
    torch.set_num_threads(4)
    plan, run, seed, folder, arguments = job
    begun, target = time.time(), folder / "runs" / f"{run['name']}-{seed}"
    after = str(folder / "runs" / f"{run.get('after')}-{seed if run.get('same_seed') else 0}")
    changes = {k: after if v == "{after}" else None if v == "none" else v for k, v in run.get("set", {}).items()}
    recipe = changed(plan["base"], {**changes, "training.seed": seed})
    if run.get("baseline"):
        recipe = {key: value for key, value in recipe.items() if key not in ("encoder", "sites")}
        recipe["baseline"] = load_recipe_table(f"baselines/{run['baseline']}")["baseline"]
    store = open_features(folder, run)
    finished.FeatureStore = lambda path: store
    result = pretrain(from_plain(Recipe, recipe), target, store=store, device=arguments.device)
    took = time.time() - begun
    last = target / "weights" / "last.safetensors"
    encoder = None if run.get("baseline") else load_weights(last)
    embedder = Embedder(str(last) if encoder is None else encoder, device=arguments.device)
    study.FEW = () if plan.get("brief") else study.FEW
    draws = REPORTING if arguments.report else plan.get("draws", CHOOSING)
    tables, flattening = read_benchmark(arguments.benchmark), plan["flattening"]
    scores = score_all(embedder.embed, tables, draws, arguments.device)
    scores["read_off"] = read_off(embedder.embed, store, flattening, arguments.device)
    if run.get("keep") and encoder is not None and seed in (0, *run.get("keep_seeds", ())):
        save(encoder, arguments.out / f"{run['name']}-{seed}.safetensors", dtype=torch.float16)
    lines = [json.loads(line) for line in (target / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["steps_per_second"] for line in lines if "steps_per_second" in line]
    sites = [line["sites"] for line in lines if "sites" in line]
    return {
        "run": run["name"],
        "seed": seed,
        "train_s": round(took, 1),
        "all_s": round(time.time() - begun, 1),
        "steps_per_second": round(speeds[-1], 1) if speeds else None,
        "sites": sites[-1] if sites else None,
        **scores,
        "validation": {k: v for k, v in result.validation.items() if not isinstance(v, dict)},
    }


def guarded(job):
    """A run, or the line that says why there is none."""
    try:
        return train(job)
    except Exception as error:
        import traceback

        return {"run": job[1]["name"], "seed": job[2], "error": repr(error)[:300], "at": traceback.format_exc()[-1500:]}


def main():
    """Make the features, then run the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan")
    parser.add_argument("--imagery", type=Path, required=True)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/levels"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="score on the reported splits")
    parser.add_argument("--stop-after", type=float, default=1e9, help="start no run after so many seconds")
    arguments = parser.parse_args()
    begun, plan = time.time(), tomllib.loads(Path(arguments.plan).read_text())
    folder = arguments.folder
    for each in (folder / "runs", arguments.out):
        each.mkdir(parents=True, exist_ok=True)
    if not (folder / "places.npz").is_file():
        make_features(plan, arguments.imagery, folder, arguments.device)
        torch.cuda.empty_cache() if arguments.device == "cuda" else None
    plan["base"] = changed(load_recipe_table(plan["recipe"]), plan.get("changes", {}))
    plan["flattening"] = read_recipe(plan["features"]).features.flattening
    turns = [(turn, run, seed) for run in plan["run"] for turn, seed in enumerate(run.get("seeds", plan["seeds"]))]
    jobs = [(plan, run, seed, folder, arguments) for _, run, seed in sorted(turns, key=lambda turn: turn[0])]
    done, running = set(), {}
    workers = ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn"))
    with workers as pool, open(arguments.out / "results.jsonl", "a") as log:
        while jobs or running:
            ready = [j for j in jobs if j[1].get("after") is None or j[1]["after"] in done]
            for job in ready[: arguments.workers - len(running)] if time.time() - begun < arguments.stop_after else ():
                running[pool.submit(guarded, job)] = job
                jobs.remove(job)
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                del running[future]
                line = future.result()
                done.add(line["run"])
                log.write(json.dumps(line) + "\n")
                log.flush()
                print(shown(line), flush=True)
    print("not started:", [(job[1]["name"], job[2]) for job in jobs], f"after {time.time() - begun:.0f} s")


def shown(line):
    """A run in one line."""
    if "error" in line:
        return f"{line['run']} {line['seed']}: {line['error']}"
    means = [line[f"{split}-means"] for split in ("random", "10deg")]
    kept = {
        k: round(v, 4) for k, v in line["validation"].items() if k in ("unexplained", "distillation", "contrastive")
    }
    tasks = " ".join(f"{t} {line['random'][t]}/{line['10deg'][t]}" for t in ("country", "elevation", "population"))
    return (
        f"{line['run']} {line['seed']}: {means} {kept} {line['read_off']} {tasks} "
        f"{line['steps_per_second']} steps/s, {line['train_s']} of {line['all_s']} s"
    )


if __name__ == "__main__":
    main()
