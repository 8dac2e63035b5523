"""Each term against plain float64 arithmetic, worked by hand where that is possible, and its laws."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.training.objective import (
    TERMS,
    ObjectiveConfig,
    Sides,
    alignment,
    contrastive,
    distillation,
    reconstruction,
    total_loss,
)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=-1)


def attention(*shape: int, seed: int = 0) -> Tensor:
    return torch.softmax(
        3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), -1
    )


def plain_contrastive(location: Tensor, image: Tensor, scale: float) -> float:
    """Cross-entropy written out row by row with numpy."""
    logits = scale * image.numpy() @ location.numpy().T
    total = 0.0
    for table in (logits, logits.T):
        for i, row in enumerate(table):
            total += math.log(np.exp(row - row[i]).sum()) / len(table) / 2
    return total


def test_contrastive_is_the_symmetric_cross_entropy() -> None:
    location, image = unit(9, 5), unit(9, 5, seed=1)
    found = contrastive(location, image, torch.tensor(7.0, dtype=torch.float64))
    assert float(found) == pytest.approx(plain_contrastive(location, image, 7.0), rel=1e-12)


def test_contrastive_of_two_opposite_pairs_by_hand() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    found = contrastive(rows, rows, torch.tensor(2.0, dtype=torch.float64))
    assert float(found) == pytest.approx(math.log(1 + math.exp(-4)), rel=1e-12)


def test_embeddings_that_say_nothing_cost_the_logarithm_of_the_batch() -> None:
    same = unit(1, 6).expand(11, 6)
    assert float(contrastive(same, same, torch.tensor(14.0, dtype=torch.float64))) == pytest.approx(math.log(11))


def test_the_right_pairing_scores_better_than_any_permutation() -> None:
    image = unit(5, 16)
    location = F.normalize(image + 0.3 * unit(5, 16, seed=1), dim=-1)
    scale = torch.tensor(5.0, dtype=torch.float64)
    losses = {
        order: float(contrastive(location[list(order)], image, scale)) for order in itertools.permutations(range(5))
    }
    assert min(losses, key=lambda order: losses[order]) == (0, 1, 2, 3, 4)
    assert sorted(losses.values())[0] < sorted(losses.values())[1]


def test_large_scales_stay_finite() -> None:
    location, image = unit(8, 4).float(), unit(8, 4, seed=1).float()
    assert bool(contrastive(location, image, torch.tensor(100.0)).isfinite())
    assert bool(contrastive(-image, image, torch.tensor(100.0)).isfinite())


def test_contrastive_gradients_are_those_of_finite_differences() -> None:
    inputs = (unit(4, 3).requires_grad_(), unit(4, 3, seed=1).requires_grad_(), torch.tensor(3.0, dtype=torch.float64))
    assert torch.autograd.gradcheck(contrastive, (*inputs[:2], inputs[2].requires_grad_()))


@pytest.mark.parametrize(("reduction", "expected"), [("sum", (0.25 + 4.0 + 1.0) / 2), ("mean", (0.25 + 4.0 + 1.0) / 4)])
def test_reconstruction_by_hand(reduction: str, expected: float) -> None:
    image = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mixed = torch.tensor([[0.5, 2.0], [0.0, 0.0]])
    assert float(reconstruction(mixed, image, reduction=reduction)) == pytest.approx(expected)  # type: ignore[arg-type]


def test_sum_is_the_width_times_the_mean() -> None:
    mixed, image = unit(7, 12), unit(7, 12, seed=1)
    by_sum = reconstruction(mixed, image, reduction="sum")
    torch.testing.assert_close(by_sum, 12 * reconstruction(mixed, image, reduction="mean"))


def test_alignment_is_the_divergence_in_the_right_direction() -> None:
    place, image = torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0.9, 0.1]]).double()
    by_hand = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert float(alignment(place, image)) == pytest.approx(by_hand, abs=1e-7)
    assert float(alignment(image, place)) == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), abs=1e-7)


def test_alignment_is_least_where_the_attentions_agree() -> None:
    place, image = attention(20, 6), attention(20, 6, seed=1)
    assert float(alignment(image, image)) == pytest.approx(0, abs=1e-9)
    assert float(alignment(place, image)) > 0.1


def test_tokens_nobody_attends_to_leave_alignment_finite() -> None:
    place, image = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert float(alignment(place, image)) == pytest.approx(-math.log(1e-8), rel=1e-5)


def test_distillation_of_the_mean_costs_one_and_of_the_feature_nothing() -> None:
    feature = 3 + 2 * torch.randn(500, 8, generator=torch.Generator().manual_seed(0)).double()
    variance = feature.var(0, unbiased=False).sum()
    assert float(distillation(feature.mean(0).expand_as(feature), feature, variance)) == pytest.approx(1)
    assert float(distillation(feature, feature, variance)) == 0


def test_stop_gradient_really_stops() -> None:
    image = unit(6, 4).requires_grad_()
    logits = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    reconstruction(torch.softmax(logits, -1) @ unit(3, 4, seed=2), image).backward()
    assert image.grad is None
    assert logits.grad is not None
    target = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    alignment(torch.softmax(logits, -1), torch.softmax(target, -1)).backward()
    assert target.grad is None


def sides(seed: int = 0) -> Sides:
    return Sides(
        location=unit(6, 4, seed=seed),
        image=unit(6, 4, seed=seed + 1),
        scale=torch.tensor(9.0, dtype=torch.float64),
        location_attention=attention(6, 3),
        image_attention=attention(6, 3, seed=1),
        reconstructed=unit(6, 4, seed=3),
        decoded=unit(6, 5, seed=4),
        feature=unit(6, 5, seed=5),
        variance=torch.tensor(0.8, dtype=torch.float64),
    )


def test_the_total_is_the_weighted_sum_of_its_named_terms() -> None:
    weights = ObjectiveConfig(contrastive=0.5, reconstruction=100.0, alignment=0.1, distillation=30.0)
    terms = total_loss(sides(), weights)
    expected = sum(getattr(weights, name) * float(getattr(terms, name)) for name in TERMS)
    assert float(terms.total) == pytest.approx(expected, rel=1e-12)
    assert all(float(getattr(terms, name)) > 0 for name in TERMS)


@pytest.mark.parametrize("name", TERMS)
def test_a_term_of_weight_nothing_is_left_out(name: str) -> None:
    whole = total_loss(sides(), ObjectiveConfig(distillation=2.0))
    without = total_loss(sides(), ObjectiveConfig(**{"distillation": 2.0, name: 0.0}))
    weight = getattr(ObjectiveConfig(distillation=2.0), name)
    assert float(getattr(without, name)) == 0
    assert float(whole.total - without.total) == pytest.approx(weight * float(getattr(whole, name)))


def test_weights_below_zero_and_objectives_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"objective\.alignment is -1"):
        ObjectiveConfig(alignment=-1.0)
    with pytest.raises(ConfigError, match="every weight"):
        ObjectiveConfig(contrastive=0.0, reconstruction=0.0, alignment=0.0)


def test_the_defaults_are_the_papers_weights() -> None:
    weights = ObjectiveConfig()
    assert [getattr(weights, name) for name in TERMS] == [1.0, 100.0, 0.1, 0.0]
    assert (weights.reduction, weights.negatives, weights.prefixes, weights.position) == ("mean", "gathered", (), 0.0)
    assert (weights.position_degrees, weights.position_decay) == (16, 1.0)


FITS: list[dict[str, object]] = [
    {"contrastive": 0.0},
    {"contrastive": 0.0, "reconstruction": 0.0, "alignment": 0.001},
    {"distillation": 0.5, "prefixes": (1, 2)},
    {"distillation": 0.5, "position": 0.5},
    {"position_degrees": 1},
    {"position_degrees": 100},
    {"position_decay": 0.0},
]
DOES_NOT_FIT: list[tuple[dict[str, object], str]] = [
    ({"contrastive": -0.5}, "objective.contrastive is -0.5; it must be at least 0"),
    ({"distillation": math.nan}, "objective.distillation is nan; it must be at least 0"),
    ({"distillation": 0.5, "position": -0.5}, "objective.position is -0.5; it must be at least 0"),
    ({"position_decay": -0.5}, "objective.position_decay is -0.5; it must be at least 0"),
    ({"position_degrees": 0}, "objective.position_degrees is 0; it lies between 1 and 100"),
    ({"position_degrees": 101}, "objective.position_degrees is 101; it lies between 1 and 100"),
    ({"position": 0.5}, "objective.position is a part of what is distilled; set objective.distillation above 0"),
    ({"distillation": 0.5, "prefixes": (0,)}, "objective.prefixes is [0]; widths are different and at least 1"),
    ({"distillation": 0.5, "prefixes": (2, 2)}, "objective.prefixes is [2, 2]; widths are different and at least 1"),
    ({"prefixes": (2,)}, "objective.prefixes are widths to distil from; set objective.distillation above 0"),
]


@pytest.mark.parametrize("values", FITS, ids=str)
def test_a_weight_may_be_as_far_as_its_edge(values: dict[str, object]) -> None:
    weights = ObjectiveConfig(**values)  # type: ignore[arg-type]
    assert {name: getattr(weights, name) for name in values} == values


@pytest.mark.parametrize(("values", "words"), DOES_NOT_FIT, ids=lambda part: str(part)[:40])
def test_a_weight_beyond_its_edge_is_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ObjectiveConfig(**values)  # type: ignore[arg-type]
    assert str(caught.value) == words


def test_an_encoder_without_tokens_has_no_token_terms() -> None:
    bare = sides()._replace(location_attention=None, image_attention=None, reconstructed=None)
    terms = total_loss(bare, ObjectiveConfig())
    assert float(terms.reconstruction) == float(terms.alignment) == 0
    assert float(terms.total) == pytest.approx(float(terms.contrastive))
    for part in ("location_attention", "image_attention"):
        assert float(total_loss(sides()._replace(**{part: None}), ObjectiveConfig()).alignment) == 0


@pytest.mark.parametrize("part", ["decoded", "feature", "variance"])
def test_without_a_decoder_nothing_is_distilled(part: str) -> None:
    assert float(total_loss(sides()._replace(**{part: None}), ObjectiveConfig(distillation=2.0)).distillation) == 0


def test_the_zero_of_a_term_left_out_asks_for_no_gradient() -> None:
    scale = torch.tensor(9.0, dtype=torch.float64, requires_grad=True)
    terms = total_loss(sides()._replace(scale=scale), ObjectiveConfig())
    assert terms.contrastive.requires_grad
    assert not terms.distillation.requires_grad
    assert terms.distillation.dtype == scale.dtype
