"""`tessearth pretrain`: train an encoder on a feature store."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tessearth.cli.progress import work_progress


def pretrain(
    out: Annotated[str, typer.Option("--out", metavar="RUN", help="The folder to make, or to go on with.")],
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a shipped recipe.")
    ] = "earth",
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="STORE", help="The feature store [default: the recipe's, made in RUN]."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=VALUE", help="Change one value of the recipe; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:0; a GPU is taken when there is one.")] = None,
) -> None:
    """Train an encoder; interrupted at any moment, --resume goes on and gives the same weights.

    tessearth pretrain smoke --out runs/smoke

    tessearth pretrain paper --store stores/mine --set features=none --set training.epochs=30 --out runs/short

    tessearth pretrain baselines/harmonics-siren --store stores/mine --set features=none --out runs/harmonics

    Several GPUs: torchrun --nproc-per-node 2 -m tessearth pretrain paper --out runs/paper
    """
    from tessearth.training.loop import pretrain as train
    from tessearth.training.recipe import read_recipe

    loaded = read_recipe(recipe, changes or [])
    with work_progress("looking at places") as looking, work_progress("training", "steps") as advance:

        def progress(step: int, steps: int, loss: float) -> None:
            advance(step, steps, "" if math.isnan(loss) else f"loss {loss:.4g}")

        try:
            result = train(loaded, out, store=store, resume=resume, device=device, progress=progress, looking=looking)
        except KeyboardInterrupt as error:
            print(f"tessearth: {error or 'interrupted'}; go on with the same command and --resume", file=sys.stderr)
            raise typer.Exit(130) from None
    if result.weights == Path():  # one of several processes, and not the one that has the run
        return
    print(f"{out}: {result.steps:,} steps, {_spoken(result.validation)}")
    if result.left_out:
        print(f"{' and '.join(result.left_out)} left out of the objective: they need tokens, this encoder has none")
    print(f"{result.weights}: use it with --model {result.weights}")


def _spoken(validation: Mapping[str, Any]) -> str:
    """What the places held out have to say about a run, when there are enough of them to compare."""
    if not validation:
        return "no validation loss: fewer than two places are held out"
    loss, top = validation["total"], validation["image_to_place_top10"]
    return f"validation loss {loss:.4g}, image to place among ten {top:.1%}"
