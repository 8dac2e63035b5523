"""What a figure shows, read from texts."""

import pytest

from tessearth.errors import ConfigError
from tessearth.figures.kinds import KINDS
from tessearth.figures.request import Request, Settings, read_settings


def test_texts_become_the_values_of_a_request() -> None:
    texts = {"token": "3", "share": "0.5", "models": "wrap,theory", "x": "tokens"}
    request = Request(model="earth", **read_settings(texts))
    assert (request.token, request.share, request.models, request.x) == (3, 0.5, "wrap,theory", "tokens")
    assert (request.seed, request.columns) == (0, None)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"tokens": "3"}, "unknown setting tokens; did you mean 'token'?"),
        ({"model": "wrap"}, "did you mean 'models'"),
        ({"token": "3.5"}, "token is 3.5, not a whole number"),
        ({"share": "half"}, "share is 'half', not a number"),
    ],
)
def test_unknown_names_and_texts_of_another_type_are_one_line(texts: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(texts)
    assert said in str(caught.value)


def test_every_setting_belongs_to_a_kind_and_the_other_way_round() -> None:
    assert {name for kind in KINDS.values() for name in kind.settings} == set(Settings.__dataclass_fields__)
