"""Do two results differ by more than their spread?

Two things make a score vary: which places were drawn, and which seed an encoder was trained from. For a model, task,
split and probe in both results, with a and b the scores of either side,

    standard error^2 = draws + seeds
    draws:  var(a_i - b_i) (1/n + test/train)                      over the n draws both sides have, members averaged
            var(a_i) (1/n_a + test/train) + var(b_i) (1/n_b + test/train)   where they have none in common
    seeds:  var(members of a) / m_a + var(members of b) / m_b

The term test/train (Nadeau and Bengio 2003) is there because draws of one table learn from mostly the same rows, so
their mean varies more than that of independent ones; it is left out where fewer rows are learned from than tested on
(few labels), because those draws hardly overlap. A difference counts when it exceeds the standard error times Student's
97.5 % quantile, with the degrees of freedom of the smallest sample used. One draw of one member on both sides has no
spread, and then nothing can be said.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tessearth.errors import DataError
from tessearth.evaluation.results import Results, Score, TaskCard
from tessearth.evaluation.summary import Runs, index_scores, member_means

Verdict = Literal["higher", "lower", "within the spread", "no spread known", "not the same task"]

STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t, the 97.5 % quantile for 1, 2, ... degrees of freedom."""
NORMAL = 1.96


class Difference(NamedTuple):
    """One model on one task and split, in both results."""

    model: str
    task: str
    split: str
    probe: str
    metric: str
    first: float
    second: float
    difference: float
    """Second minus first."""
    bound: float | None
    """What it must exceed to count."""
    paired: bool
    """Whether it is a mean over draws that both sides have, and only those."""
    verdict: Verdict
    """What the second is, compared with the first."""


def compare(first: Results, second: Results) -> list[Difference]:
    """Every model, task, split and probe that both results have, in the order of the first."""
    one, other = index_scores(first), index_scores(second)
    shared = [key for key in one if key in other]
    if not shared:
        raise DataError("the two results share no model under the same label, task, split and probe")
    ratio = _test_shares(first.scores) | _test_shares(second.scores)
    cards = {card.name: card for card in second.tasks}
    return [
        compare_runs(key, one[key], other[key], ratio[key[1], key[2]], (first.task(key[1]), cards[key[1]]))
        for key in shared
    ]


def compare_runs(
    key: tuple[str, str, str, str], first: Runs, second: Runs, ratio: float, cards: tuple[TaskCard, TaskCard]
) -> Difference:
    """One row; `ratio` is tested rows to learned ones."""
    common = {draw for _, draw in first} & {draw for _, draw in second}
    if paired := bool(common):
        first, second = ({run: value for run, value in runs.items() if run[1] in common} for runs in (first, second))
    means = [statistics.fmean(member_means(runs).values()) for runs in (first, second)]
    difference = means[1] - means[0]
    bound = _bound(first, second, paired, ratio)
    same = all(getattr(cards[0], name) == getattr(cards[1], name) for name in ("kind", "rows", "classes"))
    return Difference(
        *key, cards[0].metric, means[0], means[1], difference, bound, paired, _verdict(difference, bound, same)
    )


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; past the table the first terms of its expansion in 1 / freedom,

    z + (z^3 + z) / (4 n) + (5 z^5 + 16 z^3 + 3 z) / (96 n^2), with z = 1.96.
    """
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _bound(first: Runs, second: Runs, paired: bool, ratio: float) -> float | None:
    """How large a difference must be to count; None without any spread to tell it by."""
    one, other = (_draw_means(runs) for runs in (first, second))
    differences = [other[draw] - value for draw, value in one.items()] if paired else []
    samples = [differences] if paired else [list(one.values()), list(other.values())]
    seeds = [list(member_means(runs).values()) for runs in (first, second)]
    parts = [(values, 1 / len(values) + ratio) for values in samples if min(map(len, samples)) > 1]
    parts += [(values, 1 / len(values)) for values in seeds if len(values) > 1]
    if not parts:
        return None
    error = math.sqrt(sum(statistics.variance(values) * factor for values, factor in parts))
    return student_quantile(min(len(values) for values, _ in parts) - 1) * error


def _verdict(difference: float, bound: float | None, same: bool) -> Verdict:
    if not same:
        return "not the same task"
    if bound is None:
        return "no spread known"
    if abs(difference) <= bound:
        return "within the spread"
    return "higher" if difference > 0 else "lower"


def _draw_means(runs: Runs) -> dict[str, float]:
    draws = dict.fromkeys(draw for _, draw in runs)
    return {name: statistics.fmean(value for (_, draw), value in runs.items() if draw == name) for name in draws}


def _test_shares(scores: Sequence[Score]) -> dict[tuple[str, str], float]:
    """Tested rows to learned ones by task and split; 0 where fewer are learned from, whose draws hardly overlap."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for row in scores:
        test, train = sums.get((row.task, row.split), (0, 0))
        sums[row.task, row.split] = test + row.test_rows, train + row.train_rows
    return {key: test / train if test <= train else 0.0 for key, (test, train) in sums.items()}
