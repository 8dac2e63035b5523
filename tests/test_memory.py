"""The measure of memory itself: a large test run does not show in what it measures."""

import sys

from tests.memory import peak_of


def test_what_a_command_held_is_its_own_and_not_its_starters() -> None:
    large = bytearray(b"1" * 300_000_000)
    small = peak_of(sys.executable, "-c", "pass", threads=1)
    assert small < 100e6 < len(large)
    assert peak_of(sys.executable, "-c", "bytearray(b'1' * 200_000_000)", threads=1) > small + 190e6
