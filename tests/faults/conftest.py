"""What the suites share: things to work on, and what each work leaves behind undisturbed."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.forker import Forker
from tests.faults.works import WORKS, Given, make_given


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return make_given(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="session")
def forker(given: Given) -> Iterator[Forker]:
    with Forker(given) as forker:
        yield forker


@pytest.fixture(scope="session")
def undisturbed(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """The result of a work that nothing happened to, done once."""
    known: dict[str, dict[str, bytes]] = {}

    def find(name: str) -> dict[str, bytes]:
        if name not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            assert forker.do(name, folder) == 0
            known[name] = WORKS[name].result(folder)
        return known[name]

    return find


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own; forking from a process with threads, which newer Pythons warn of, is meant here."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TESSEARTH_CACHE", str(cache))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield cache
