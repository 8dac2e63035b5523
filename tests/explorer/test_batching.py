"""Many requests on one model: right answers, fair shares, honest refusals."""

import asyncio
import threading
import time

import numpy as np
import pytest

from tessearth.explorer.session import AT_LEAST, ROUND_POINTS, Batcher, OverloadedError
from tests.coroutines import run

DIM = 3


def double(latlon: np.ndarray) -> np.ndarray:
    return np.column_stack((latlon, latlon.sum(1))).astype(np.float32)


def places(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-80, 80, (count, 2))


def test_every_request_gets_the_embeddings_of_its_own_places() -> None:
    async def main() -> None:
        async with Batcher(max_pending=10**6) as batcher:
            asked = [places(count, seed=count) for count in (1, 5, ROUND_POINTS + 7, 2, 3 * AT_LEAST)]
            found = await asyncio.gather(*(batcher.run(double, one) for one in asked))
            for one, got in zip(asked, found, strict=True):
                np.testing.assert_array_equal(got, double(one))
            assert batcher.pending == 0

    run(main())


def test_what_waits_is_embedded_together() -> None:
    sizes: list[int] = []

    def slow(latlon: np.ndarray) -> np.ndarray:
        sizes.append(len(latlon))
        time.sleep(0.05)
        return double(latlon)

    async def main() -> None:
        async with Batcher(max_pending=1000) as batcher:
            await asyncio.gather(*(batcher.run(slow, places(1, seed=i)) for i in range(100)))

    run(main())
    assert sum(sizes) == 100
    assert len(sizes) <= 3


def test_one_place_does_not_wait_for_a_long_table() -> None:
    def slow(latlon: np.ndarray) -> np.ndarray:
        time.sleep(len(latlon) / ROUND_POINTS * 0.1)
        return double(latlon)

    async def main() -> tuple[float, float]:
        async with Batcher(max_pending=10**6) as batcher:
            start = time.perf_counter()
            table = asyncio.create_task(batcher.run(slow, places(10 * ROUND_POINTS)))
            await asyncio.sleep(0.15)
            await batcher.run(slow, places(1))
            single = time.perf_counter() - start
            await table
            return single, time.perf_counter() - start

    single, table = run(main())
    assert single < table / 2


def test_more_than_the_limit_is_refused_at_once() -> None:
    async def main() -> None:
        async with Batcher(max_pending=10) as batcher:
            with pytest.raises(OverloadedError, match="too many; ask again in a moment"):
                await batcher.run(double, places(11))
            assert len(await batcher.run(double, places(10))) == 10

    run(main())


def test_a_request_nobody_waits_for_is_dropped() -> None:
    seen: list[int] = []
    release = threading.Event()

    def slow(latlon: np.ndarray) -> np.ndarray:
        seen.append(len(latlon))
        release.wait(5)
        return double(latlon)

    async def main() -> None:
        async with Batcher(max_pending=10**6) as batcher:
            first = asyncio.create_task(batcher.run(slow, places(1)))
            await asyncio.sleep(0.05)
            given_up = asyncio.create_task(batcher.run(slow, places(77)))
            await asyncio.sleep(0.05)
            given_up.cancel()
            release.set()
            await first
            await batcher.run(slow, places(2))
            assert batcher.pending == 0

    run(main())
    assert 77 not in seen


def test_an_error_reaches_those_who_asked_and_the_next_goes_on() -> None:
    def sometimes(latlon: np.ndarray) -> np.ndarray:
        if latlon[0, 0] == 1:
            raise ValueError("broken")
        return double(latlon)

    async def main() -> None:
        async with Batcher(max_pending=100) as batcher:
            with pytest.raises(ValueError, match="broken"):
                await batcher.run(sometimes, np.array([[1.0, 2.0]]))
            assert (await batcher.run(sometimes, np.array([[2.0, 2.0]]))).shape == (1, DIM)

    run(main())


def test_stopping_answers_those_who_wait() -> None:
    def slow(latlon: np.ndarray) -> np.ndarray:
        time.sleep(0.1)
        return double(latlon)

    async def main() -> None:
        batcher = Batcher(max_pending=10**6)
        await batcher.__aenter__()
        waiting = asyncio.create_task(batcher.run(slow, places(5 * ROUND_POINTS)))
        await asyncio.sleep(0.02)
        await batcher.__aexit__()
        with pytest.raises(OverloadedError, match="the server is stopping"):
            await waiting
        with pytest.raises(OverloadedError):
            await batcher.run(slow, places(1))

    run(main())
