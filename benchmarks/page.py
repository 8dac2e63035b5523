"""How soon the explorer shows its globe, and how much it loads before: a real browser in software rendering, loopback.

    PYTHONPATH=src python3 benchmarks/page.py [--model earth] [--visits 5] [--screenshot FILE]

Every visit is a browser's first: nothing is kept from the one before. The browser sends the pictures it paints as they
are painted; the first on which the globe's middle is no longer of one colour is when the globe was there to be seen.
The processor time of browser and server until the globe stood is taken beside it: it does not depend on what else runs.
"""

import argparse
import base64
import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from tessearth.zoo.shipped import DEFAULT_MODEL

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SOFTWARE = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")
WIDTH, HEIGHT, PANEL = 1280, 720, 372
DRAWN = 12.0
"""The spread of brightness over the globe's middle: the empty page has 0, the Earth about 40."""


class Visit(NamedTuple):
    """Seconds since the address was entered, and megabytes."""

    text: float
    globe: float
    complete: float
    megabytes: float
    processor: float


def start(model):
    """`tessearth explore` in a process of its own, and where it listens."""
    command = [sys.executable, "-m", "tessearth", "explore", "--model", model, "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, re.search(r"http://\S+/", process.stdout.readline())[0]


def wait_until_ready(page, url):
    while page.request.get(f"{url}health").json()["status"] != "ok":
        time.sleep(0.5)


def processor_seconds():
    """Of all processes below this one: the browser's and the server's."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        spent[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(spent[process] for process in ours - {os.getpid()} if process in spent)


def is_drawn(jpeg):
    picture = np.asarray(Image.open(io.BytesIO(jpeg)).convert("L"), dtype=np.float64)
    height, width = picture.shape
    left = int(width * (PANEL + 0.35 * (WIDTH - PANEL)) / WIDTH)
    middle = picture[height // 3 : 2 * height // 3, left : left + width // 5]
    return middle.std() > DRAWN


def visit(browser, url, screenshot=None):
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    pictures = []
    session = context.new_cdp_session(page)

    def keep(event):
        pictures.append((event["metadata"]["timestamp"], event["data"]))
        session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    session.on("Page.screencastFrame", keep)
    session.send("Page.startScreencast", {"format": "jpeg", "quality": 60, "maxWidth": 640, "maxHeight": 360})
    before = processor_seconds()
    page.goto(url)
    page.wait_for_selector("body[data-loaded]", timeout=60_000)
    complete, spent = page.evaluate("performance.now()") / 1000, processor_seconds() - before
    page.wait_for_timeout(1500)
    session.send("Page.stopScreencast")
    begun = page.evaluate("performance.timeOrigin") / 1000
    text = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
    moved = page.evaluate("performance.getEntriesByType('resource').reduce((sum, e) => sum + e.transferSize, 0)")
    seen = [when - begun for when, data in pictures if when > begun and is_drawn(base64.b64decode(data))]
    if screenshot:
        page.screenshot(path=screenshot)
    context.close()
    return Visit(text, min(seen, default=float("nan")), complete, moved / 1e6, spent)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--screenshot", metavar="FILE")
    parser.add_argument("--url", help="A server that runs already.")
    arguments = parser.parse_args()
    process, url = (None, arguments.url) if arguments.url else start(arguments.model)
    try:
        with sync_playwright() as started:
            path = next(found for name in BROWSERS if (found := shutil.which(name)))
            browser = started.chromium.launch(executable_path=path, args=list(SOFTWARE))
            wait_until_ready(browser.new_page(), url)
            visits = [visit(browser, url, arguments.screenshot) for _ in range(arguments.visits)]
    finally:
        if process is not None:
            process.terminate()
            process.wait(30)
    print("visit  first text s  globe drawn s  globe at rest s  megabytes  processor s")
    for number, one in enumerate(visits, 1):
        times = f"{one.text:12.2f}  {one.globe:13.2f}  {one.complete:15.2f}"
        print(f"{number:5}  {times}  {one.megabytes:9.2f}  {one.processor:11.2f}")
    print(f"median globe drawn {np.median([one.globe for one in visits]):.2f} s")


if __name__ == "__main__":
    main()
