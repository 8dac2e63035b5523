"""`tessearth bench`: how fast this machine encodes, and at what error."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli import options
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    from tessearth.embedding import Row, SizeRow


def bench(
    places: Annotated[int, typer.Option(help="Places per round, spread over the sphere.")] = 32768,
    threads: Annotated[int, typer.Option(help="Processor threads.")] = 2,
    rounds: Annotated[int, typer.Option(help="Rounds; the best of each contestant counts.")] = 5,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="Numbers of sites to compare, such as 4096,16384,65536.")
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    as_json: options.Json = False,
) -> None:
    """Measure speed and error on this machine, against the plain dense form and other encoders.

    tessearth bench --model earth --threads 1
    """
    from tessearth.embedding import Bench, compare, compare_sizes, single_place_ms

    settings = Bench(model=model, places=places, threads=threads, rounds=rounds)
    if sizes is not None:
        scaling = compare_sizes(settings, _numbers(sizes))
        print(json.dumps([row._asdict() for row in scaling], indent=2) if as_json else "\n".join(_size_lines(scaling)))
        return
    rows, single = compare(settings), single_place_ms(settings)
    if as_json:
        print(json.dumps({"rows": [row._asdict() for row in rows], "single_place_ms": single}, indent=2))
        return
    print("\n".join(_lines(rows)))
    print(f"\none place at a time: {single:.2f} ms")


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--sizes is {text!r}; give whole numbers with commas, such as 4096,65536") from None
    if min(numbers) < 1:
        raise ConfigError(f"--sizes is {text!r}; every number of sites must be at least 1")
    return numbers


def _lines(rows: "list[Row]") -> list[str]:
    lines = [f"{'':<18}{'places/s':>10}{'x dense':>9}{'max error':>11}{'min cosine':>12}"]
    for row in rows:
        if row.note:
            lines.append(f"{row.name:<18}{row.note}")
            continue
        error = "" if row.largest_error is None else f"{row.largest_error:>11.1e}{row.least_cosine:>12.7f}"
        lines.append(f"{row.name:<18}{row.places_per_second:>10,.0f}{row.times_plain:>9.2f}{error}")
    return lines


def _size_lines(rows: "list[SizeRow]") -> list[str]:
    lines = [f"{'sites':>8}{'sharpness':>11}{'places/s':>10}{'x slower':>10}"]
    return lines + [
        f"{row.num_sites:>8,}{row.sharpness:>11.0f}{row.places_per_second:>10,.0f}{row.times_slower:>10.2f}"
        for row in rows
    ]
