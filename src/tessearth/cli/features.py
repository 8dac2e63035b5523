"""`tessearth features`: look at every picture once and keep what a frozen encoder saw."""

from typing import Annotated

import typer

from tessearth.cli.progress import work_progress


def features(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a shipped recipe.")],
    out: Annotated[str, typer.Option("--out", metavar="STORE", help="The folder to make, or to go on with.")],
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:0; a GPU is taken when there is one.")] = None,
    readers: Annotated[int, typer.Option(min=1, help="Threads that read tiles while the encoder works.")] = 2,
    processes: Annotated[
        int, typer.Option(min=0, help="Processes that read instead of threads: for many places on many cores.")
    ] = 0,
) -> None:
    """Make a feature store; interrupted at any moment, the same command goes on and gives the same bytes."""
    from tessearth.devices import find_device
    from tessearth.imagery.recipe import load_recipe
    from tessearth.imagery.store_builder import build_store

    loaded, chosen = load_recipe(recipe), find_device(device)
    with work_progress("looking at places") as progress:
        store = build_store(loaded, out, device=chosen, readers=readers, processes=processes, progress=progress)
    shape = f"{len(store.latlon):,} places x {store.manifest['views']} views x {store.manifest['width']:,} features"
    print(f"{out}: {shape}, {store.features.nbytes / 1e6:,.0f} MB; tessearth info {out} describes it")
