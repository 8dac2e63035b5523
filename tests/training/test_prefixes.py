"""Distillation from the embedding's first dimensions: worked by hand, free when not asked for, learned when it is."""

import json
from pathlib import Path

import pytest
import torch

from tessearth.errors import ConfigError
from tessearth.training.data import Moments, TrainingData
from tessearth.training.loop import pretrain
from tessearth.training.model import PretrainingModel
from tessearth.training.objective import ObjectiveConfig, Sides, distillation_by_width, total_loss
from tessearth.training.recipe import GroupRecipe, GroupsRecipe, TrainingRecipe
from tessearth.training.step import group_of
from tests.conftest import tiny_encoder
from tests.training.fabricate import toy_recipe

OBJECTIVE = ObjectiveConfig(contrastive=0.0, reconstruction=0.0, alignment=0.0, distillation=2.0, prefixes=(1,))


def sides(**parts: object) -> Sides:
    """Two pairs with features (0, 2) and (2, 0): total variance 2 around their mean (1, 1)."""
    unit = torch.eye(2, dtype=torch.float64)
    feature = torch.tensor([[0.0, 2.0], [2.0, 0.0]], dtype=torch.float64)
    given = {"feature": feature, "variance": torch.tensor(2.0, dtype=torch.float64), **parts}
    return Sides(location=unit, image=unit, scale=torch.tensor(1.0, dtype=torch.float64), **given)  # type: ignore[arg-type]


def test_the_term_is_the_mean_over_the_whole_and_the_prefixes_by_hand() -> None:
    whole = torch.tensor([[0.0, 2.0], [2.0, 1.0]], dtype=torch.float64)  # misses 0 and 1: (0 + 1) / 2 / 2 = 1/4
    short = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)  # the mean: (2 + 2) / 2 / 2 = 1
    found = sides(decoded=whole, prefix_decoded=(short,))
    assert [float(part) for part in distillation_by_width(found)] == [0.25, 1.0]
    terms = total_loss(found, OBJECTIVE)
    assert float(terms.distillation) == pytest.approx((0.25 + 1.0) / 2, rel=1e-12)
    assert float(terms.total) == pytest.approx(2 * (0.25 + 1.0) / 2, rel=1e-12)
    alone = total_loss(sides(decoded=whole), OBJECTIVE)
    assert float(alone.distillation) == pytest.approx(0.25, rel=1e-12)


def build_model(**objective: object) -> PretrainingModel:
    recipe = toy_recipe(objective=objective)
    moments = Moments(torch.zeros(24), torch.tensor(24.0))
    return PretrainingModel(
        tiny_encoder(dtype=torch.float32), moments, recipe.objective, recipe.training, torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize("read_from", ["raw", "unit"])
def test_a_prefix_decoder_reads_its_first_dimensions_alone(read_from: str) -> None:
    model = build_model(prefixes=(3, 7), distil_from=read_from).eval()
    latlon = torch.tensor([[10.0, 20.0], [-30.0, 100.0], [60.0, -70.0]])
    found = model.sides(latlon, torch.ones(3, 24))
    encoding = model.encoder.encode(latlon)  # type: ignore[operator]
    read = encoding.raw if read_from == "raw" else encoding.embedding
    assert len(found.prefix_decoded) == 2
    for decoder, decoded, n in zip(model.prefix_decoders, found.prefix_decoded, (3, 7), strict=True):
        torch.testing.assert_close(decoded, read[:, :n] @ decoder.weight.T + decoder.bias)  # type: ignore[operator,union-attr]


def test_without_prefixes_nothing_is_added_and_nothing_else_changes() -> None:
    plain, longer = build_model(), build_model(prefixes=(3, 7))
    assert len(plain.prefix_decoders) == 0
    added = set(longer.state_dict()) - set(plain.state_dict())
    assert added == {f"prefix_decoders.{i}.{part}" for i in range(2) for part in ("weight", "bias")}
    assert {group_of(name) for name in added} == {"decoder"}
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, longer.state_dict()[name])


def test_training_with_prefixes_moves_what_can_be_read_off_them(store: Path, tmp_path: Path) -> None:
    def short_prefix(prefixes: tuple[int, ...], name: str) -> float:
        """How much of held-out features the best linear map of the first four dimensions misses after training."""
        recipe = toy_recipe(
            objective={"contrastive": 0.0, "distillation": 10.0, "prefixes": prefixes},
            encoder={"dropout": 0.0},
            groups=GroupsRecipe(head=GroupRecipe(learning_rate=5e-3), decoder=GroupRecipe(learning_rate=1e-2)),
            steps=200,
            log_every=50,
            evaluate_every=200,
            checkpoint_every=200,
        )
        result = pretrain(recipe, tmp_path / name, store=store, device="cpu")
        from tessearth.encoder.weights import load_weights
        from tessearth.imagery.store import FeatureStore

        data = TrainingData(FeatureStore(store), TrainingRecipe(), output_dim=16, device=torch.device("cpu"))
        batch = data.held_out(100)
        assert batch is not None
        read = load_weights(result.weights).encode(batch.latlon).raw[:, :4].detach().double()
        read = torch.cat((read, torch.ones(len(read), 1, dtype=torch.float64)), dim=1)
        features = batch.features.double()
        left = features - read @ torch.linalg.lstsq(read, features).solution
        return float(left.square().sum() / (features - features.mean(0)).square().sum())

    assert short_prefix((4,), "with") < short_prefix((), "without") - 0.02
    lines = [json.loads(line) for line in (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()]
    by_width = next(line["validation"]["distillation_by_width"] for line in lines if "validation" in line)
    assert list(by_width) == ["whole", "4"]
    assert by_width["whole"] < by_width["4"] < 1


@pytest.mark.parametrize(
    ("prefixes", "words"), [((0,), "at least 1"), ((4, 4), "different"), ((18,), "the embedding is 18 wide")]
)
def test_widths_that_make_no_sense_are_refused(prefixes: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_model(prefixes=prefixes)
    with pytest.raises(ConfigError, match=r"set objective\.distillation above 0"):
        ObjectiveConfig(prefixes=(4,))
