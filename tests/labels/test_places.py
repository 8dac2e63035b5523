"""Places by name and names of places."""

import numpy as np
import pytest

from tessearth.errors import MissingExtraError, UnknownNameError
from tessearth.labels import find_place, nearest_towns, prepare_labels, sources


@pytest.mark.parametrize(
    ("text", "name", "latlon"),
    [
        ("Nairobi", "Nairobi, KE", (-1.28, 36.82)),
        ("paris", "Paris, FR", (48.85, 2.35)),
        ("Paris, Canada", "Paris, CA", (43.2, -80.38)),
        ("Springfield, IL", "Springfield, IL, US", (39.80, -89.64)),
        ("Wien", "Vienna, AT", (48.21, 16.37)),
        ("sao paulo", "São Paulo, BR", (-23.55, -46.64)),
    ],
)
def test_towns_are_found_by_their_names(text: str, name: str, latlon: tuple[float, float]) -> None:
    found = find_place(text)
    assert found.name == name
    np.testing.assert_allclose(found.latlon, latlon, atol=0.02)


@pytest.mark.parametrize(("text", "name"), [("Kenya", "Kenya"), ("KEN", "Kenya"), ("united states", "United States")])
def test_a_country_is_a_place_inside_it(text: str, name: str) -> None:
    found = find_place(text)
    assert found.name.startswith(name)
    table = prepare_labels(found.latlon[None], ["country"])["country"]
    assert table[0] >= 0
    assert nearest_towns(found.latlon[None])[0].endswith(name)


def test_an_ambiguous_name_is_refused_with_its_towns() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_place("Springfield")
    words = str(caught.value)
    assert "Springfield, MO, US (37.2153 -93.2982); Springfield, MA, US" in words
    assert "add the region or country after a comma" in words
    assert "\n" not in words


@pytest.mark.parametrize(("text", "words"), [("Narobi", "did you mean 'nairobi'"), ("xqzt", "give LAT LON instead")])
def test_an_unknown_name_is_refused(text: str, words: str) -> None:
    with pytest.raises(UnknownNameError, match=words):
        find_place(text)


def test_towns_are_named_with_their_country() -> None:
    latlon = np.array([(-1.2833, 36.8167), (48.8534, 2.3488)])
    assert nearest_towns(latlon) == ["Nairobi, Kenya", "Paris, France"]


def test_without_the_package_a_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, what: str, extra: str, **__: object) -> None:
        raise MissingExtraError(what, extra)

    monkeypatch.setattr(sources, "package_file", absent)
    with pytest.raises(MissingExtraError, match="pip install"):
        sources.source_file("towns", "data/cities500.json")
