"""Coordinates written as text are read where they have one meaning, and refused where they have none or two."""

import numpy as np
import pytest

from tessearth.sphere.angles import Form, guess_form, read_angle, read_pair

PARIS = (48 + 51 / 60, 2 + 21 / 60)


@pytest.mark.parametrize(
    ("text", "form", "degrees"),
    [
        ("48.85", "degrees", 48.85),
        ("+.5", "degrees", 0.5),
        ("-1e1", "degrees", -10),
        ("−7", "degrees", -7),  # noqa: RUF001
        ("48,85", "comma", 48.85),
        ("48.85", "comma", 48.85),
        ("48°51'N", "dms", PARIS[0]),
        ("S 48° 51' 0\"", "dms", -PARIS[0]),
        ("48:51:00", "dms", PARIS[0]),
        ("48.85S", "dms", -48.85),
        ("-48 51", "dms", -PARIS[0]),
        ("48 deg 51 m N", "dms", PARIS[0]),
    ],
)
def test_an_angle_is_read(text: str, form: Form, degrees: float) -> None:
    assert read_angle(text, form) == pytest.approx(degrees, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", "degrees"),
        ("48,85", "degrees"),
        ("1_000", "degrees"),
        ("1,234.5", "comma"),
        ("1,234,5", "comma"),
        ("48°61'", "dms"),
        ("-48°51'N", "dms"),
        ("N 48°51'N", "dms"),
        ("2°21'O", "dms"),
        ("x", "dms"),
    ],
)
def test_what_is_no_angle_is_nan(text: str, form: Form) -> None:
    assert np.isnan(read_angle(text, form))


@pytest.mark.parametrize(
    "text",
    ["48.85, 2.35", "48.85,2.35", "48.85 2.35", "48.85;2.35", "(48.85, 2.35)", "[48.85 2.35]", "48,85 2,35",
     "48,85; 2,35", "48.85N 2.35E", "POINT (2.35 48.85)", "point z(2.35 48.85 7)"],
)  # fmt: skip
def test_a_pair_is_read(text: str) -> None:
    assert read_pair(text, "lat,lon") == pytest.approx((48.85, 2.35))


@pytest.mark.parametrize(
    "text", ["48°51'N 2°21'E", "48° 51' N, 2° 21' E", "48° 51' N 2° 21' E", "48 51 N 2 21 E", "48° 51' 2° 21'"]
)
def test_a_pair_of_degrees_and_minutes_is_read(text: str) -> None:
    assert read_pair(text, "lat,lon") == pytest.approx(PARIS)
    assert read_pair(text.replace("N", "W").replace("E", "N"), "lon,lat")[0] == pytest.approx(PARIS[1])


@pytest.mark.parametrize(
    "text", ["48 51 2 21", "1,48,2", "48,5, 2,3", "2°21'E 48°51'N", "48.85", "", "a b", "48.85,", "48 2 1"]
)
def test_a_pair_of_no_or_two_meanings_is_refused(text: str) -> None:
    assert np.isnan(read_pair(text, "lat,lon")).all()


def test_the_form_of_texts_is_guessed() -> None:
    assert guess_form(["48,85", "2,35"]) == "comma"
    assert guess_form(["48°51'N"]) == "dms"
    assert guess_form(["48.85, 2.35"]) == "lat,lon"
    assert guess_form(["Paris"]) is None
