"""The server under load on loopback: throughput against the model's own, latency, memory, and what overload gets.

    PYTHONPATH=src python3 benchmarks/serve.py [--model earth] [--seconds 60] [--connections 64]

The model's own rate is taken in the server's own way (batches of 8,192 places) in this process before the server
starts and again while it idles; the higher one counts. Clients share the processor with the server, so what they cost
is part of the answer. Where other programs run too, rates say little: what a place costs in processor time, alone and
served, is measured beside them and does not depend on who else is there.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np

from tessearth import Embedder
from tessearth.zoo.shipped import DEFAULT_MODEL

PLACES = 1024
"""Of one batched request."""


class Reply(NamedTuple):
    status: int
    seconds: float
    size: int


class Server:
    """`tessearth serve` in a process of its own."""

    def __init__(self, model, *options):
        command = [sys.executable, "-m", "tessearth", "serve", "--model", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.port = int(re.search(r"http://[^:]+:(\d+)/", line)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)

    def megabytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            spent = file.read().rpartition(")")[2].split()
        return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")

    async def wait_until_ready(self):
        while True:
            reply = await Connection(self.port).ask(b"GET", b"/health", keep=True)
            if b'"status":"ok"' in reply[1]:
                return
            await asyncio.sleep(0.5)


class Connection:
    """HTTP/1.1 over one connection that is kept open."""

    def __init__(self, port):
        self.port, self.streams = port, None

    async def ask(self, method, path, body=b"", keep=False):
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        start = time.perf_counter()
        writer.write(b"%s %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (method, path, len(body), body))
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
        content = await reader.readexactly(length)
        if b"connection: close" in head.lower():
            writer.close()
            self.streams = None
        reply = Reply(int(head.split()[1]), time.perf_counter() - start, length)
        return (reply, content) if keep else reply


async def load(port, connections, seconds, make):
    """Every connection asks again as soon as it is answered; all replies, and how long it took."""
    replies, start = [], time.perf_counter()
    deadline = start + seconds

    async def one(number):
        connection, rng = Connection(port), np.random.default_rng(number)
        while time.perf_counter() < deadline:
            replies.append(await connection.ask(*make(rng)))

    await asyncio.gather(*(one(number) for number in range(connections)))
    return replies, time.perf_counter() - start


def draw(rng, count):
    return np.stack((np.rad2deg(np.arcsin(rng.uniform(-1, 1, count))), rng.uniform(-180, 180, count)), axis=-1)


def single(rng):
    ((lat, lon),) = draw(rng, 1)
    return b"GET", f"/embed?lat={lat:.5f}&lon={lon:.5f}".encode()


def batch(count):
    return lambda rng: (b"POST", b"/embed/binary", draw(rng, count).astype("<f8").tobytes())


class Own(NamedTuple):
    """What the model does by itself."""

    rate: float
    """Places a second."""
    cost: float
    """Microseconds of processor time a place, over all threads."""


def own_rate(model, seconds=6.0):
    """Embed batches of fresh places for a while."""
    embedder, rng = Embedder(model, device="cpu"), np.random.default_rng(0)
    embedder.embed(draw(rng, 8192))
    done, start, spent = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        embedder.embed(draw(rng, 8192))
        done += 8192
    return Own(done / (time.perf_counter() - start), 1e6 * (time.process_time() - spent) / done)


def counts(replies):
    status, number = np.unique([reply.status for reply in replies], return_counts=True)
    return ", ".join(f"{n} x {s}" for s, n in zip(status, number, strict=True))


async def under_load(server, connections, seconds):
    """What requests get together: places a second, and microseconds of server and clients a place."""
    await server.wait_until_ready()
    await load(server.port, connections, 3, batch(PLACES))  # caches fill, threads start
    memory, spent = server.megabytes(), server.processor_seconds() + time.process_time()
    replies, took = await load(server.port, connections, seconds, batch(PLACES))
    good = sum(reply.status == 200 for reply in replies)
    served = Own(
        good * PLACES / took, 1e6 * (server.processor_seconds() + time.process_time() - spent) / (good * PLACES)
    )
    after = server.megabytes()
    print(f"batched /embed/binary, {connections} connections, {took:.0f} s, {PLACES} places each: {counts(replies)}")
    print(f"  {served.rate:,.0f} places/s; memory {memory:.0f} MB -> {after:.0f} MB")
    replies, took = await load(server.port, connections, seconds, single)
    times = np.array([reply.seconds for reply in replies]) * 1000
    p50, p99 = np.percentile(times, (50, 99))
    per_second = len(replies) / took
    print(f"single /embed, {connections} connections, {took:.0f} s: {counts(replies)}, {per_second:,.0f} a second")
    print(f"  p50 {p50:.1f} ms, p99 {p99:.1f} ms = {p99 / p50:.1f} times, longest {times.max():.0f} ms")
    print(f"  memory {server.megabytes():.0f} MB")
    return served


async def over_load(server, connections):
    """More at once than may wait: every request is answered, the surplus with 503."""
    await server.wait_until_ready()
    start = time.perf_counter()
    replies, _ = await load(server.port, connections, 5, batch(16_384))
    longest = max(reply.seconds for reply in replies)
    took = time.perf_counter() - start
    words = f"{counts(replies)}; longest {longest:.1f} s, all {took:.0f} s"
    print(f"overload, {connections} connections of 16,384 places: {words}")


async def too_often(server):
    replies, _ = await load(server.port, 8, 3, single)
    print(f"rate limit of 20 a second: {counts(replies)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=64)
    arguments = parser.parse_args()
    before = own_rate(arguments.model)
    print(f"{arguments.model}; {os.cpu_count()} cores")
    with Server(arguments.model, "--rate", "0") as server:
        served = asyncio.run(under_load(server, arguments.connections, arguments.seconds))
        own = max(before, own_rate(arguments.model))
        print(f"the server's rate is {served.rate / own.rate:.0%} of the Embedder's own, {own.rate:,.0f} places/s")
        share = own.cost / served.cost
        print(f"a place costs {served.cost:.0f} us of processor time served, {own.cost:.0f} us alone: {share:.0%}")
        asyncio.run(over_load(server, arguments.connections))
    with Server(arguments.model, "--rate", "20") as server:
        asyncio.run(too_often(server))


if __name__ == "__main__":
    main()
