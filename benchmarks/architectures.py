"""Every architecture trained on the same features under the same objective: what is left is the architecture.

    .venv/bin/python benchmarks/architectures.py --recipe smoke --out runs/architectures [--seeds 0,1,2] [--width 256]

Trains our encoder and every baseline as `tessearth pretrain RECIPE` would, on one store, each baseline behind a network
of about our head's size, and leaves the runs in --out. `benchmarks/embedded.py --weights $(cat OUT/models)` puts them
into one table.
"""

import argparse
import time
from pathlib import Path

from tessearth.storage.files import write_bytes
from tessearth.training.loop import pretrain
from tessearth.training.recipe import read_recipe
from tessearth.zoo import BASELINES

RESIDUAL = "{{num_blocks = 2, dropout = 0.1, hidden_dim = {width}, output_dim = {width}}}"
PLAIN = "{{num_hidden = 2, hidden_dim = {width}, output_dim = {width}}}"
NETWORKS = {"fourier": PLAIN, "harmonics-siren": PLAIN, "grid-feedforward": PLAIN}
"""Networks of another kind than the residual one."""
OURS = "voronoi"


def main() -> None:
    parser = argparse.ArgumentParser(description="Every architecture on the same features under the same objective.")
    parser.add_argument("--recipe", default="smoke")
    parser.add_argument("--store", help="a store of that recipe; made under --out otherwise")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    out, store = Path(arguments.out), arguments.store
    models = []
    for name in (OURS, *BASELINES):
        members = []
        for seed in arguments.seeds.split(","):
            run = out / f"{name}-{seed}"
            weights = run / "weights" / "best.safetensors"
            if not (run / "done").is_file():
                begun = time.monotonic()
                recipe = read_recipe(arguments.recipe, changes(name, seed, arguments.width))
                pretrain(recipe, run, store=store, resume=run.exists(), device=arguments.device)
                write_bytes(run / "done", b"")
                print(f"{name} {seed}: {time.monotonic() - begun:.0f} s", flush=True)
            members.append(str(weights))
            store = store or run / "features"
        models.append(f"{name}-trained:{'|'.join(members)}")
    write_bytes(out / "models", (" ".join(models) + "\n").encode())
    print(f"{out / 'models'}: {len(models)} rows for benchmarks/embedded.py")


def changes(name: str, seed: str, width: int) -> list[str]:
    """What makes the recipe train this architecture."""
    own = [f"training.seed={seed}"]
    if name == OURS:
        return own
    network = NETWORKS.get(name, RESIDUAL).format(width=width)
    return [*own, f"baseline.name={name}", f"baseline.settings={{network = {network}}}"]


if __name__ == "__main__":
    main()
