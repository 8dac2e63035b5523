"""Files of the geographic prior: species by name or number, and what is said of a file that is none."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth.errors import DataError, UnknownNameError
from tessearth.evaluation.geoprior import (
    GeoPrior,
    PriorSettings,
    SavedPrior,
    Sightings,
    evaluate_prior,
    fit_prior,
    load_prior,
    read_scores,
    read_sightings,
    save_prior,
)
from tessearth.storage.sealed import seal_tensors

PRIOR = GeoPrior(torch.arange(6.0).reshape(3, 2), torch.tensor([0.5, 0.25, 0.125]))
NAMED = SavedPrior(PRIOR, ("lynx", "wolf", "bear"), "earth")
NUMBERED = SavedPrior(PRIOR, (), "earth")


def sightings(classes: list[int], names: tuple[str, ...] = ()) -> Sightings:
    return Sightings(np.zeros((len(classes), 2)), np.array(classes), names)


def test_a_species_is_found_by_its_name() -> None:
    assert [NAMED.code_of(name) for name in ("lynx", "wolf", "bear")] == [0, 1, 2]
    with pytest.raises(UnknownNameError, match=r"the prior knows no species 'wolff'; did you mean 'wolf'\?"):
        NAMED.code_of("wolff")
    with pytest.raises(UnknownNameError, match=r"the prior knows no species 'xyz' among its 3, such as 'lynx'"):
        NAMED.code_of("xyz")


def test_a_species_without_a_name_is_found_by_its_number() -> None:
    assert [NUMBERED.code_of(number) for number in ("0", "1", "2")] == [0, 1, 2]
    for wrong in ("3", "4", "300", "-1", "1.0", "wolf", ""):
        with pytest.raises(UnknownNameError, match="the prior's species are numbers from 0 to 2"):
            NUMBERED.code_of(wrong)


def test_sightings_are_translated_to_the_priors_codes() -> None:
    found = NAMED.codes_of(sightings([0, 1, 2, 1], ("bear", "mole", "lynx")))
    assert found.tolist() == [2, -1, 0, -1]
    assert NUMBERED.codes_of(sightings([0, 2, 3, 9])).tolist() == [0, 2, -1, -1]
    for prior, table in ((NAMED, sightings([0])), (NUMBERED, sightings([0], ("lynx",)))):
        with pytest.raises(DataError, match="has names for its species, and the other only numbers"):
            prior.codes_of(table)


def test_the_prior_of_one_species_is_its_column() -> None:
    whole = PRIOR.probabilities(np.array([[3.0, 4.0], [-1.0, 0.0]]))
    for code in range(3):
        one = PRIOR.of_class(code)
        assert one.weight.shape == (1, 2)
        np.testing.assert_array_equal(one.probabilities(np.array([[3.0, 4.0], [-1.0, 0.0]]))[:, 0], whole[:, code])


def test_a_prior_without_names_reads_back_without_names(tmp_path: Path) -> None:
    save_prior(PRIOR, tmp_path / "p", model="earth", fingerprint="f")
    assert load_prior(tmp_path / "p")[1:] == ((), "earth", "f")


FOREIGN: dict[str, tuple[dict[str, torch.Tensor], dict[str, str], str]] = {
    "another format": ({"weight": PRIOR.weight, "bias": PRIOR.bias}, {"format": "other"}, "is not a prior written by"),
    "no weight": ({"bias": PRIOR.bias}, {"format": "tessearth-prior"}, "is not a prior written by"),
    "no bias": ({"weight": PRIOR.weight}, {"format": "tessearth-prior"}, "is not a prior written by"),
    "two lengths": ({"weight": PRIOR.weight, "bias": PRIOR.bias[:2]}, {"format": "tessearth-prior"}, "is not a prior"),
    "a name too few": (
        {"weight": PRIOR.weight, "bias": PRIOR.bias},
        {"format": "tessearth-prior", "names": "a\nb"},
        "is damaged: 2 names for 3 species",
    ),
}


@pytest.mark.parametrize("wrong", FOREIGN)
def test_a_sealed_file_of_something_else_is_no_prior(tmp_path: Path, wrong: str) -> None:
    tensors, header, words = FOREIGN[wrong]
    (tmp_path / "p").write_bytes(seal_tensors(tensors, header))
    with pytest.raises(DataError, match=words):
        load_prior(tmp_path / "p")


def write(path: Path, **arrays: object) -> Path:
    given = {"lon": np.arange(6.0), "lat": np.arange(6.0), "classes": np.arange(6) % 3, **arrays}
    np.savez(path, **{name: np.asarray(array) for name, array in given.items() if array is not None})
    return path


def test_image_scores_are_there_or_not(tmp_path: Path) -> None:
    assert read_sightings(write(tmp_path / "with.npz", prediction=np.ones((6, 3)))).has_scores
    assert not read_sightings(write(tmp_path / "without.npz")).has_scores
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="is not an npz of plain arrays, or is damaged"):
        read_sightings(tmp_path / "broken.npz")


def test_scores_may_be_numbers_of_any_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).random((6, 3))
    for dtype in (np.float16, np.float32, np.float64):
        (found,) = read_scores(write(tmp_path / "s.npz", prediction=scores.astype(dtype)))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, scores.astype(dtype).astype(np.float32))
    monkeypatch.setattr("tessearth.evaluation.geoprior.SCORES_AT_ONCE", 2)  # fewer than a row has classes
    assert [block.shape for block in read_scores(tmp_path / "s.npz")] == [(1, 3)] * 6


@pytest.mark.parametrize(
    "array",
    [np.ones(6), np.ones((2, 3, 1)), np.ones((6, 3), dtype=np.int64), np.asfortranarray(np.ones((6, 3)))],
    ids=["one axis", "three axes", "whole numbers", "by column"],
)
def test_scores_are_a_table_of_numbers_row_by_row(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(DataError, match="must be numbers \\(rows, classes\\) row by row"):
        list(read_scores(write(tmp_path / "s.npz", prediction=array)))


def test_scores_that_end_too_soon_are_said(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 3), }"
    text = header + b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        archive.writestr("prediction.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(70))
    with pytest.raises(DataError, match="prediction ends after fewer than its 6 rows"):
        list(read_scores(tmp_path / "s.npz"))
    with zipfile.ZipFile(tmp_path / "n.npz", "w") as archive:
        archive.writestr("prediction.npy", b"no array at all, but long enough")
    with pytest.raises(DataError, match="prediction is not a plain array"):
        list(read_scores(tmp_path / "n.npz"))


def test_sightings_beside_scores_need_all_their_parts(tmp_path: Path) -> None:
    for name in ("lon", "lat", "classes"):
        with pytest.raises(DataError, match=f"has no {name}; it must hold lon, lat, classes, prediction"):
            read_sightings(write(tmp_path / "s.npz", prediction=np.ones((6, 3)), **{name: None}))


@pytest.mark.parametrize("classes", [np.array([-1, 0, 1, 2, 0, 1]), np.arange(6) / 1.0], ids=["negative", "fractions"])
def test_classes_are_whole_numbers_from_nothing(tmp_path: Path, classes: np.ndarray) -> None:
    with pytest.raises(DataError, match="they must be whole numbers from 0"):
        read_sightings(write(tmp_path / "s.npz", classes=classes))
    assert read_sightings(write(tmp_path / "e.npz", lon=[], lat=[], classes=np.array([], dtype=int))).known.sum() == 0


def test_tables_of_two_axes_are_no_sightings(tmp_path: Path) -> None:
    flat = dict.fromkeys(("lon", "lat"), np.zeros((6, 1)))
    with pytest.raises(DataError, match="have shapes"):
        read_sightings(write(tmp_path / "s.npz", classes=np.zeros((6, 1), dtype=int), **flat))


def test_the_protocols_settings_are_the_defaults() -> None:
    settings = PriorSettings()
    assert (settings.positive_weight, settings.learning_rate, settings.epochs) == (2048.0, 1e-3, 50)
    assert (settings.batch_size, settings.seed) == (2048, 0)
    assert PriorSettings(seed=-1, epochs=1, batch_size=1).seed == -1


def test_without_any_place_images_decide_alone() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]])
    found = evaluate_prior(PRIOR, [(np.full((2, 2), np.nan), scores, np.array([1, 2]))])
    assert found.image == found.combined == {1: 0.5, 3: 1.0, 5: 1.0, 10: 1.0}
    assert found.rows == 2


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (np.array([0.0, 1.0]), "classes are float64 of shape"),
        (np.array([0, 1, 2]), r"they must be whole numbers \(2,\)"),
        (np.array([-1, 1]), "classes run from -1 to 1; there are 2, counted from 0"),
        (np.array([0, 2]), "classes run from 0 to 2; there are 2, counted from 0"),
    ],
)
def test_classes_that_cannot_be_learned_are_named(classes: np.ndarray, words: str) -> None:
    with pytest.raises(DataError, match=words):
        fit_prior(np.ones((2, 3)), classes, 2, PriorSettings(epochs=1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e-9])
def test_scores_are_finite_and_not_negative(value: float) -> None:
    scores = np.full((2, 3), 0.5)
    scores[1, 2] = value
    with pytest.raises(DataError, match="image scores must be probabilities"):
        evaluate_prior(PRIOR, [(np.full((2, 2), np.nan), scores, np.array([0, 1]))])
