"""`tessearth bench`: how fast this machine encodes, and at what error."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli import options

if TYPE_CHECKING:
    from tessearth.embedding import Row


def bench(
    places: Annotated[int, typer.Option(help="Places per round, spread over the sphere.")] = 32768,
    threads: Annotated[int, typer.Option(help="Processor threads.")] = 2,
    rounds: Annotated[int, typer.Option(help="Rounds; the best of each contestant counts.")] = 5,
    model: options.Model = options.DEFAULT_MODEL,
    as_json: options.Json = False,
) -> None:
    """Measure speed and error on this machine, against the plain dense form and other encoders.

    tessearth bench --model earth --threads 1
    """
    from tessearth.embedding import Bench, compare, single_place_ms

    settings = Bench(model=model, places=places, threads=threads, rounds=rounds)
    rows, single = compare(settings), single_place_ms(settings)
    if as_json:
        print(json.dumps({"rows": [row._asdict() for row in rows], "single_place_ms": single}, indent=2))
        return
    print("\n".join(_lines(rows)))
    print(f"\none place at a time: {single:.2f} ms")


def _lines(rows: "list[Row]") -> list[str]:
    lines = [f"{'':<18}{'places/s':>10}{'x dense':>9}{'max error':>11}{'min cosine':>12}"]
    for row in rows:
        if row.note:
            lines.append(f"{row.name:<18}{row.note}")
            continue
        error = "" if row.largest_error is None else f"{row.largest_error:>11.1e}{row.least_cosine:>12.7f}"
        lines.append(f"{row.name:<18}{row.places_per_second:>10,.0f}{row.times_plain:>9.2f}{error}")
    return lines
