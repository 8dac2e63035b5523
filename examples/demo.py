"""What a newcomer sees first: the shipped model at work, a small one trained on the spot, and both compared.

make demo                                  minutes on two cores; says how long each part took; then open demo/index.html
python examples/demo.py --quick --out /tmp/demo     the same with far fewer places and steps, to see that it runs
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_model import show_alike, show_model
from demo_page import Page
from demo_sizes import SIZES, Size
from demo_training import load_tasks, show_evaluation, show_probe, show_training

from tessearth.errors import OutputError, TessearthError
from tessearth.storage.files import locked_folder

UNFINISHED = ".training-"


def main() -> int:
    parser = argparse.ArgumentParser(description="The shipped model at work, and a small one trained beside it.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="the folder to write to [default: demo]")
    parser.add_argument("--quick", action="store_true", help="far fewer places and steps: only to see that it runs")
    arguments = parser.parse_args()
    try:
        run(arguments.out, SIZES["quick" if arguments.quick else "full"])
    except KeyboardInterrupt:
        print(f"\ninterrupted; {arguments.out} holds only whole files, and `make demo` starts over", file=sys.stderr)
        return 130
    except TessearthError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return 0


def run(out: Path, size: Size) -> None:
    """Every part in turn, then the page."""
    begun = time.perf_counter()
    with locked_folder(out, busy=OutputError(f"another demo is writing to {out}; choose another --out")):
        page = Page(out)
        page.begin()
        page.say(
            "A location encoder turns a latitude and a longitude into a list of numbers, an embedding, made so that "
            "places that look alike from above get similar lists. Anything known about some places can then be learned "
            "from those numbers and said of all others. Every figure and number below was computed just now, on this "
            "machine, from data that comes with the package."
        )
        if size != SIZES["full"]:
            page.say("This is the quick version: few places, few steps. Its numbers only show that everything runs.")
        embedder = show_model(page, size)
        show_alike(page, size, embedder)
        tasks = load_tasks(page, size)
        show_probe(page, tasks, embedder)
        with training_folder(out) as folder:
            show_training(page, size, folder)
        show_evaluation(page, tasks, out, size)
        show_end(page, time.perf_counter() - begun)
        path = page.write("tessearth: what it does, part by part")
    print(f"\nopen {path}")


def show_end(page: Page, seconds: float) -> None:
    with page.part("From here"):
        page.table(
            ("part", "seconds", "processor seconds"),
            [(took.title, f"{took.seconds:.0f}", f"{took.processor:.0f}") for took in page.took]
            + [("all", f"{seconds:.0f}", f"{sum(took.processor for took in page.took):.0f}")],
        )
        page.code(
            [
                "tessearth encode 48.857 2.352 --json                        one place",
                "tessearth encode --input points.csv --out out.parquet       a table of places",
                "tessearth retrieve similar 48.857 2.352 --apart 1000        places alike",
                "tessearth evaluate --models earth,mine:demo/smoke/weights/best.safetensors",
                "tessearth plot embeddings --region europe --out europe.png",
            ]
        )


@contextmanager
def training_folder(out: Path) -> Iterator[Path]:
    """A folder for the run that is gone afterwards; those of demos that were killed go first (the lock is ours)."""
    for left in out.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
