"""`tessearth features`: the outputs of a frozen image encoder, computed once and stored."""

from typing import Annotated

import typer

from tessearth.cli import options
from tessearth.cli.commands import work_progress


def features(
    recipe: options.Recipe,
    out: options.Out,
    device: options.Device = None,
    readers: Annotated[int, typer.Option(min=1, help="Threads that read tiles while the encoder works.")] = 2,
    processes: Annotated[
        int, typer.Option(min=0, help="Processes that read instead of threads: for many places on many cores.")
    ] = 0,
) -> None:
    """Make a feature store; after an interruption the same command resumes and gives the same bytes.

    tessearth features smoke --out stores/smoke
    """
    from tessearth.imagery import build_store, load_recipe
    from tessearth.settings import find_device

    loaded, chosen = load_recipe(recipe), find_device(device)
    done = 0

    def report(finished: int, total: int) -> None:
        nonlocal done
        done = finished
        progress(finished, total)

    with work_progress("computing features") as progress:
        try:
            store = build_store(loaded, out, device=chosen, readers=readers, processes=processes, progress=report)
        except KeyboardInterrupt:
            kept = f"the features of {done:,} places are kept in {out}" if done else "nothing was computed yet"
            raise KeyboardInterrupt(f"{kept}; run the same command again to go on") from None
    shape = f"{len(store.latlon):,} places x {store.manifest['views']} views x {store.manifest['width']:,} features"
    print(f"{out}: {shape}, {store.features.nbytes / 1e6:,.0f} MB; tessearth info {out} describes it")
