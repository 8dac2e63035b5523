"""`tessearth plot`: every figure of the method by name."""

from typing import Annotated

import typer

from tessearth.cli import commands, options
from tessearth.errors import ConfigError


def plot(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="What to draw [default: list all kinds].")] = None,
    out: options.OptionalOut = None,
    model: options.Model = options.DEFAULT_MODEL,
    projection: Annotated[
        str | None, typer.Option(help="equal-earth, robinson, orthographic, or local for regions.")
    ] = None,
    region: options.Region = None,
    center: Annotated[
        str | None, typer.Option("--center", metavar="LAT,LON", help="The middle of the map, in degrees.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="DIR", help="The training run [default: the model's own].")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", metavar="FILE", help="Scores to plot, a csv file.")] = None,
    width: Annotated[
        float | None, typer.Option("--width", metavar="CM", help="[default: a column, 8.5, or a page, 17.5]")
    ] = None,
    dpi: Annotated[int, typer.Option(help="Dots per inch of a png.")] = 300,
    overwrite: options.Overwrite = False,
    changes: options.Set = None,
    device: options.Device = None,
) -> None:
    """Draw a figure as .png, .svg or .pdf; without a KIND, list the kinds and the settings that --set changes in each.

    tessearth plot embeddings --projection robinson --out embeddings.png

    tessearth plot migration --run runs/earth --region south-america --out migration.pdf

    tessearth plot predictions --set task=temperature --set models=geoclip,sphereM+ --out temperature.png

    tessearth plot performance --table scores.csv --set x=top_k --out top_k.svg
    """
    from tessearth.figures import KINDS, Request, check_figure, read_settings, read_view, write_figure
    from tessearth.storage import check_free

    if kind is None:
        for name, card in KINDS.items():
            settings = f" [{', '.join(card.settings)}]" if card.settings else ""
            print(f"{name:<{max(map(len, KINDS))}}  {card.summary}{settings}")
        return
    KINDS[kind]
    if out is None:
        raise ConfigError("say where the figure goes: --out FILE.png")
    check_figure(kind, out, dpi)  # before anything is computed
    check_free(out, overwrite=overwrite)
    request = Request(
        model=model,
        view=read_view(projection, region, center),
        device=device,
        run=run,
        table=table,
        width_cm=width,
        **read_settings(commands.split_settings(changes)),
    )
    write_figure(kind, request, out, dpi)
    print(out)
    if kind not in ("migration", "performance", "training"):
        commands.warn_if_untrained(model)
