"""The command run inside the test process: what it prints, and the status it ends with."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tessearth import save
from tests.conftest import tiny_encoder


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def tessearth(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> Outcome:
        from tessearth.cli.app import main

        monkeypatch.setattr(sys, "argv", ["tessearth", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save(tiny_encoder(dtype=torch.float32), path, provenance={"recipe": "none"})
    return path


@contextmanager
def without_privileges() -> Iterator[None]:
    """File permissions bind even root's tests: the effective user is nobody inside the block."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
