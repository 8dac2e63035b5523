"""The command as a whole: help without words, short options, Ctrl-C, names that lists do not cut."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize("group", [(), ("retrieve",), ("prior",)])
def test_without_arguments_the_help_is_printed(tessearth: Command, group: tuple[str, ...]) -> None:
    outcome = tessearth(*group)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: {' '.join(('tessearth', *group))}")
    assert "..." not in outcome.out.partition("Commands:")[2]


def test_help_and_version_have_short_names(tessearth: Command) -> None:
    assert tessearth("encode", "-h").out == tessearth("encode", "--help").out
    assert tessearth("-V").out == tessearth("--version").out


def test_ctrl_c_says_what_is_kept_and_how_to_resume(tmp_path: Path) -> None:
    latlon = np.random.default_rng(0).uniform(-80, 80, (400_000, 2)).round(4)
    np.savetxt(tmp_path / "in.csv", latlon, fmt="%.4f", delimiter=",", header="lat,lon", comments="")
    call = [
        sys.executable,
        "-m",
        "tessearth",
        "encode",
        "--input",
        "in.csv",
        "--out",
        "out.npy",
        "--model",
        "earth-small",
    ]
    process = subprocess.Popen([*call, "--workers", "1"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    journal, deadline = tmp_path / "out.npy.parts" / "journal.jsonl", time.monotonic() + 90
    while not journal.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "interrupted; " in said
    assert "finished chunks are kept in out.npy.parts; run the same command again to resume" in said
    assert said.count("\n") == 1
