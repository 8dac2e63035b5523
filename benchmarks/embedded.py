"""Every baseline, the references, published weights and models of one's own on the embedded benchmark.

    .venv/bin/python benchmarks/embedded.py [--weights LABEL:PATH|PATH ...] [--out runs/embedded]

GeoCLIP's weights are taken from its package; when it is not installed the report says so. Baselines with a network are
untrained here unless a trained one is given with --weights. Results with full provenance, the HTML report and the maps
go to --out, the tables to --table.
"""

import argparse
import sys
from pathlib import Path

from tessearth.evaluation.report import build_report, to_markdown
from tessearth.evaluation.runner import evaluate
from tessearth.storage.files import write_bytes
from tessearth.zoo import BASELINES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--weights", nargs="*", default=[], metavar="LABEL:PATH|PATH", help="models of one's own")
    parser.add_argument("--splits", default="random,10deg")
    parser.add_argument("--tasks", help="with commas; all nine embedded ones by default")
    parser.add_argument("--without", default="", help="baselines to leave out, with commas")
    parser.add_argument("--out", default="runs/embedded")
    parser.add_argument("--table", default="benchmarks/results/embedded.md")
    parser.add_argument("--benchmark", help="a file of the embedded labels made elsewhere (labels.benchmark_path())")
    parser.add_argument("--device")
    arguments = parser.parse_args()
    left_out = arguments.without.split(",")
    results = evaluate(
        [*arguments.weights, "geoclip", *(name for name in BASELINES if name not in left_out)],
        arguments.tasks.split(",") if arguments.tasks else None,
        arguments.splits.split(","),
        out=arguments.out,
        benchmark=arguments.benchmark,
        device=arguments.device,
        progress=show,
    )
    text = to_markdown(build_report(results), "maps")
    title, _, rest = text.partition("\n\n")
    command = " ".join(["python", "benchmarks/embedded.py", *sys.argv[1:]])
    untrained = [name for name, card in BASELINES.items() if card.has_network and name not in left_out]
    about = f"`{command}`" + (
        f"\n\nUntrained, what their shape alone gives: {', '.join(untrained)}." if untrained else ""
    )
    write_bytes(Path(arguments.table), f"{title}: the embedded benchmark\n\n{about}\n\n{rest}".encode())
    print(f"{arguments.table}; {arguments.out}/report.html")


def show(done: int, total: int | None, note: str = "") -> None:
    print(f"{done}/{total} {note}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
