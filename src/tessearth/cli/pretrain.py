"""`tessearth pretrain`: train an encoder on a feature store."""

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from tessearth.cli import options
from tessearth.cli.options import work_progress


def pretrain(
    out: options.Out,
    recipe: options.Recipe = "earth",
    store: options.OptionalStore = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    changes: options.Set = None,
    device: options.Device = None,
) -> None:
    """Train an encoder; --resume continues an interrupted run and gives the same weights.

    Without --store, the recipe's own store is made inside the run.

    tessearth pretrain smoke --out runs/smoke

    tessearth pretrain paper --store stores/mine --set features=none --set training.epochs=30 --out runs/short

    tessearth pretrain baselines/harmonics-siren --store stores/mine --set features=none --out runs/harmonics

    Several GPUs: torchrun --nproc-per-node 2 -m tessearth pretrain paper --out runs/paper
    """
    from tessearth.training import pretrain as train
    from tessearth.training import read_recipe

    loaded = read_recipe(recipe, changes or [])
    with work_progress("computing features") as computing, work_progress("training", "steps") as advance:

        def progress(step: int, steps: int, loss: float) -> None:
            advance(step, steps, "" if math.isnan(loss) else f"loss {loss:.4g}")

        try:
            result = train(
                loaded,
                out,
                store=store,
                resume=resume,
                device=device,
                progress=progress,
                features_progress=computing,
            )
        except KeyboardInterrupt as error:
            print(f"tessearth: {error or 'interrupted'}; add --resume to the same command to continue", file=sys.stderr)
            raise typer.Exit(130) from None
    if result.weights == Path():  # one of several processes, but not the one that writes the run
        return
    scores = "no validation loss: fewer than two places are held out"
    if result.validation:
        loss, top = result.validation["total"], result.validation["image_to_place_top10"]
        scores = f"validation loss {loss:.4g}, image to place among ten {top:.1%}"
    print(f"{out}: {result.steps:,} steps, {scores}")
    if result.left_out:
        print(f"{' and '.join(result.left_out)} left out of the objective: they need tokens, this encoder has none")
    print(f"{result.weights}: use it with --model {result.weights}")
