"""`tessearth pretrain`: train an encoder on a feature store."""

import math
from pathlib import Path
from typing import Annotated

import typer

from tessearth.cli import options
from tessearth.cli.commands import work_progress
from tessearth.errors import ConfigError, DataError


def pretrain(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a shipped recipe [default: earth]."),
    ] = None,
    out: options.OptionalOut = None,
    store: options.OptionalStore = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue an interrupted run; nothing else is needed.")
    ] = None,
    changes: options.Set = None,
    device: options.Device = None,
) -> None:
    """Train an encoder; --resume RUN continues an interrupted run and gives the same weights.

    Without --store, the recipe's own store is made inside the run.

    tessearth pretrain smoke --out runs/smoke

    tessearth pretrain --resume runs/smoke

    tessearth pretrain paper --store stores/mine --set features=none --set training.epochs=30 --out runs/short

    tessearth pretrain baselines/harmonics-siren --store stores/mine --set features=none --out runs/harmonics

    Several GPUs: torchrun --nproc-per-node 2 -m tessearth pretrain paper --out runs/paper
    """
    from tessearth.training import pretrain as train
    from tessearth.training import read_recipe

    run = _find_run(out, resume)
    if resume is not None and recipe is None and changes:
        raise ConfigError("a run keeps its recipe: leave out --set with --resume")
    loaded = None if resume is not None and recipe is None else read_recipe(recipe or "earth", changes or [])
    with work_progress("computing features") as computing, work_progress("training", "steps") as advance:

        def progress(step: int, steps: int, loss: float) -> None:
            advance(step, steps, "" if math.isnan(loss) else f"loss {loss:.4g}")

        try:
            result = train(
                loaded,
                run,
                store=store,
                resume=resume is not None,
                device=device,
                progress=progress,
                features_progress=computing,
            )
        except KeyboardInterrupt as error:
            kept = str(error) or "what was finished before is kept"
            raise KeyboardInterrupt(f"{kept}; to go on: tessearth pretrain --resume {run}") from None
    if result.weights == Path():  # one of several processes, but not the one that writes the run
        return
    scores = "no validation loss: fewer than two places are held out"
    if result.validation:
        loss, top = result.validation["total"], result.validation["image_to_place_top10"]
        scores = f"validation loss {loss:.4g}, image to place among ten {top:.1%}"
    print(f"{run}: {result.steps:,} steps, {scores}")
    if result.left_out:
        print(f"{' and '.join(result.left_out)} left out of the objective: they need tokens, this encoder has none")
    print(f"{result.weights}: use it with --model {result.weights}")


def _find_run(out: str | None, resume: str | None) -> str:
    """The folder of the run, new or resumed."""
    if resume is None:
        if out is None:
            raise ConfigError("say where the run is written: --out RUN, or --resume RUN to continue one")
        return out
    if out is not None and Path(out).resolve() != Path(resume).resolve():
        raise ConfigError(f"--resume {resume} goes on in that folder: leave out --out")
    if not Path(resume).is_dir():
        raise DataError(f"there is no run {resume} to continue")
    return resume
