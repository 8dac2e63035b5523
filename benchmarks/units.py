"""How much of a head is in use: units that are on nowhere on Earth, and directions in which the embedding varies.

    python benchmarks/units.py MODEL ...
    python benchmarks/units.py --start RECIPE ... [--set sites.centred=true --set sites.spread=1]

A model is looked at as it is, a recipe's encoder before the first step, with the changes that are set. Over places
spread evenly on the sphere: how much of the power of what goes into the norm is common to all, units that are never on
after the entry and after each block's two layers, and how many directions hold more than 1e-4, 1e-5 and 1e-6 of the
embedding's variance.
"""

import argparse
from pathlib import Path

import torch

from tessearth.encoder.sites import start_sites
from tessearth.training.recipe import read_recipe
from tessearth.training.start import build_start
from tessearth.zoo.names import load_base

PLACES = 6000
SHARES = (1e-4, 1e-5, 1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="MODEL|RECIPE")
    parser.add_argument("--start", action="store_true", help="the names are those of recipes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="changes to recipes")
    arguments = parser.parse_args()
    print("| | common to all places | never on: entry, then first and second of each block | directions above |")
    print("|---|---:|---|---|")
    for name in arguments.names:
        encoder = start(name, arguments.set) if arguments.start else load_base(name)
        common, never_on, directions = look(encoder.float().eval())
        print(f"| {Path(name).name} | {common:.4f} | {never_on} | {directions} |", flush=True)


def start(recipe, changes):
    return build_start(read_recipe(recipe, changes), torch.Generator().manual_seed(0))


@torch.no_grad()
def look(encoder):
    blends, outputs = [], []
    layers = [encoder.head.entry, *(layer for block in encoder.head.blocks for layer in (block.first, block.second))]
    encoder.norm.register_forward_pre_hook(lambda _, inputs: blends.append(inputs[0]))
    for layer in layers:
        layer.register_forward_hook(lambda _, __, output: outputs.append(output))
    embedded = encoder.embed_xyz(start_sites("full", PLACES)).double()
    [blend] = blends
    common = blend.mean(0).square().sum() / blend.square().sum(1).mean()
    never_on = ", ".join(str(int((output.max(0).values <= 0).sum())) for output in outputs)
    centred = embedded - embedded.mean(0)
    variance = torch.linalg.eigvalsh(centred.T @ centred)
    directions = ", ".join(str(int((variance > share * variance.sum()).sum())) for share in SHARES)
    return float(common), f"{never_on} of {outputs[0].shape[1]}", f"{directions} of {embedded.shape[1]}"


if __name__ == "__main__":
    main()
