"""How learning rates go: up in a line, down along a cosine, per step."""

import math

from tessearth.errors import DataError
from tessearth.training.recipe import TrainingRecipe


def count_steps(training: TrainingRecipe, places: int) -> tuple[int, int]:
    """Steps in an epoch and in the whole run; an epoch's last places that fill no batch wait for the next shuffle."""
    per_epoch = places // training.batch_size
    if per_epoch == 0:
        raise DataError(
            f"there are {places} training places, fewer than the batch of {training.batch_size}; "
            f"make a larger store, or --set training.batch_size={places}"
        )
    return per_epoch, training.steps or max(1, round(training.epochs * per_epoch))


def learning_rate(peak: float, final: float, step: int, warmup: int, steps: int) -> float:
    """The rate of one step: peak (step + 1) / warmup while rising, then final + (peak - final) (1 + cos(pi t)) / 2.

    t goes from 0 at the first step after the warm-up to 1 at the last of all. A peak below the final rate stays level.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / max(1, steps - 1 - warmup)
    final = min(final, peak)
    return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * min(t, 1.0)))


def warmup_steps(training: TrainingRecipe, per_epoch: int, steps: int) -> int:
    """How long the learning rates rise: what the recipe says, at most half of the run."""
    return min(round(training.warmup_epochs * per_epoch), steps // 2)
