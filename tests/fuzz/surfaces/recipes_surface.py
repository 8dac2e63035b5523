"""Recipes: TOML files laid over each other, and changes from the command line."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutation import VALUES, damage_bytes, damage_tree
from tests.fuzz.surfaces import Prepared, Surface, each

ROOT = Path(__file__).parents[3]
TOKENS = (
    *(b"base = ", b'"paper"', b'"smoke"', b"[encoder]", b"[[features.sources]]", b"[baseline]", b"[training]", b"none"),
    *(b"= true", b"= 1e999", b"= -1", b"= inf", b"= nan", b"= 1979-05-27T07:32:00Z", b"= [[", b"= {a = 1}", b"'''"),
    *(
        b"= " + b"9" * 400,
        b"= " + b"9" * 6000,
        b"= " + b"[" * 3000,
        b"a" * 5000,
        b"\xff",
        b"\x00",
        b"= 0x" + b"f" * 5000,
    ),
    *(b'start_from = "case.toml"', b'start_from = "direct"', b'base = "case.toml"', b"a.b.c.d.e = 1", b"\r", b"\n"),
)
NEVER = (b"/", b"@")
"""In a start_from these would name a model of the hub, which nobody may fetch while fuzzing."""


def prepare(folder: Path) -> Prepared:
    """The recipes that come along, plain and as what they come to over their bases."""
    from tessearth.imagery.recipe import load_recipe
    from tessearth.training.recipe import read_recipe, to_toml

    paths = sorted((ROOT / "recipes").rglob("*.toml"))
    seeds = [path.read_bytes() for path in paths]
    whole = [to_toml(read_recipe(str(path)).to_dict()).encode() for path in paths[:: len(paths) // 8]]
    target = folder / "case.toml"

    def read(recipe: bytes, change: bytes) -> None:
        target.write_bytes(recipe)
        read = read_recipe(str(target), [change.decode("utf-8", "replace")] if change else [])
        target.write_text(to_toml(read.to_dict()), errors="surrogatepass")
        again = read_recipe(str(target)).to_dict()
        # As text, because an option may be nan, which equals nothing.
        assert json.dumps(again) == json.dumps(read.to_dict()), "a recipe written and read again is another"

    def load(recipe: bytes) -> None:
        target.write_bytes(recipe)
        load_recipe(str(target))

    def run(content: bytes) -> None:
        recipe, _, change = content.partition(b"\n#set ")
        each(lambda: read(recipe, change), lambda: load(recipe))

    good = [seed for seed in (*seeds, *whole) if b"[features" in seed or b"base" in seed]
    return Prepared([seed for seed in good if _runs(run, seed)], run)


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Damage the text, or the tables it stands for."""
    import tomllib

    from tessearth.training.recipe import to_toml

    seed = random.choice(seeds)
    if random.random() < 0.5:
        content = damage_bytes(random, seed, seeds, TOKENS)
    else:
        tree = damage_tree(random, tomllib.loads(seed.decode()), VALUES)
        try:
            content = to_toml(tree).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError, AttributeError, RecursionError):  # TOML has no word for it
            content = damage_bytes(random, seed, seeds, TOKENS)
    if random.random() < 0.2:
        content += b"\n#set " + _change(random)
    return content.replace(b"start_from", b"start_fron") if _names_the_hub(content) else content


def _change(random: Random) -> bytes:
    paths = (
        "training.batch_size",
        "encoder.tessellations.0.num_sites",
        "features",
        "baseline.name",
        "encoder",
        "a.b",
        ".",
    )
    value = random.choice((*VALUES, "none", "[", "x=y"))
    text = f"{random.choice(paths)}={value if isinstance(value, str) else json.dumps(value)}"
    return (
        damage_bytes(random, text.encode("utf-8", "replace"))
        if random.random() < 0.3
        else text.encode("utf-8", "replace")
    )


def _names_the_hub(content: bytes) -> bool:
    lines = [line for line in content.splitlines() if b"start_from" in line]
    return any(mark in line for line in lines for mark in NEVER)


def _runs(run: Any, content: bytes) -> bool:
    try:
        run(content)
    except Prepared._field_defaults["accepted"]:
        return False
    return True


SURFACE = Surface("recipes", prepare, mutate)
