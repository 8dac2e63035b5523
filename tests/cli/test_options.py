"""The command line as a whole: few options each, one meaning for a name, help with an example."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from tessearth.cli.app import app

MOST_OPTIONS = 12


def commands(group: Any, name: str = "tessearth") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


COMMANDS = dict(commands(typer.main.get_command(app)))


def options_of(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_more_options_than_one_can_oversee(name: str) -> None:
    assert len(options_of(COMMANDS[name])) <= MOST_OPTIONS


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, dict[tuple[object, ...], str]] = {}
    for name, command in COMMANDS.items():
        for option in options_of(command):
            kind = option.bare_type() if hasattr(option, "bare_type") else option.type.name  # typer before 0.20
            meaning = (option.help, str(kind), option.metavar, option.multiple, tuple(option.secondary_opts))
            meanings.setdefault(option.opts[0], {})[meaning] = name
    assert len(meanings) > 40
    for option, several in meanings.items():
        assert len(several) == 1, f"{option} differs between {' and '.join(several.values())}"
        assert all(meaning[0] for meaning in several), f"{option} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_the_command_does_and_shows_it(name: str) -> None:
    text = COMMANDS[name].help
    assert text.split("\n")[0].rstrip(":").endswith((".", ")"))
    assert f"\n{name} " in text.replace("\n\n", "\n"), "no example line"
