"""`tessearth plot`: every figure of the method by name."""

from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, ModelOption, warn_if_untrained
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    from tessearth.figures.kinds import Kind


def plot(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="What to draw [default: list all kinds].")] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="x.png, x.svg or x.pdf; migration also as x.gif.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    projection: Annotated[
        str | None, typer.Option(help="equal-earth, robinson, orthographic, or local for regions.")
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="world, europe, africa, south-america ..., or a country's name.")
    ] = None,
    center: Annotated[
        str | None, typer.Option("--center", metavar="LAT,LON", help="The middle of the map, in degrees.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="DIR", help="The training run [default: the model's own].")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="DIR", help="A feature store whose tiles are shown.")
    ] = None,
    token: Annotated[int | None, typer.Option(help="The token to show [default: the one that tells most].")] = None,
    tessellation: Annotated[int, typer.Option(help="Which one, of a model with several.")] = 0,
    task: Annotated[str, typer.Option(help="What is predicted: a task of `tessearth evaluate`.")] = "koppen",
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="A,B,...", help="Encoders drawn beside --model in prediction maps."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="FILE", help="Scores as csv, or a study's jsonl.")
    ] = None,
    x: Annotated[str, typer.Option(help="What was varied: sites, tokens, places, top_k; K or T of a study.")] = "sites",
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="RUN=VALUE", help="What another run of a study had; repeatable."),
    ] = None,
    share: Annotated[float, typer.Option(help="The share of sites shown in migration and sharpness.")] = 0.3,
    seed: Annotated[int, typer.Option(help="Which sites those are.")] = 0,
    frames: Annotated[int, typer.Option(help="How many pictures a .gif has.")] = 40,
    width: Annotated[
        float | None, typer.Option("--width", metavar="CM", help="[default: a column, 8.5, or a page, 17.5]")
    ] = None,
    columns: Annotated[int | None, typer.Option(help="How many pixels a painted map is wide.")] = None,
    dpi: Annotated[int, typer.Option(help="Dots per inch of a png.")] = 300,
    device: DeviceOption = None,
) -> None:
    """Draw a figure; without a KIND, list what can be drawn.

    tessearth plot embeddings --projection robinson --out embeddings.png

    tessearth plot migration --run runs/earth --region south-america --out migration.pdf

    tessearth plot predictions --task temperature --models geoclip,sphereM+ --out temperature.png

    tessearth plot performance --table scores.csv --x top_k --out top_k.svg
    """
    from tessearth.figures.kinds import KINDS, check_figure, write_figure
    from tessearth.figures.request import Request, read_view

    if kind is None:
        print("\n".join(f"{name:<{max(map(len, KINDS))}}  {_describe(card)}" for name, card in KINDS.items()))
        return
    KINDS[kind]
    if out is None:
        raise ConfigError("say where the figure goes: --out FILE.png")
    check_figure(kind, out, dpi)  # before anything is computed
    request = Request(
        model=model,
        view=read_view(projection, region, center),
        device=device,
        run=run,
        store=store,
        token=token,
        tessellation=tessellation,
        columns=columns,
        width_cm=width,
        share=share,
        seed=seed,
        frames=frames,
        task=task,
        models=models or "",
        table=table,
        x=x,
        also=",".join(also or []),
    )
    write_figure(kind, request, out, dpi)
    print(out)
    if kind not in ("migration", "performance", "training"):
        warn_if_untrained(model)


def _describe(kind: "Kind") -> str:
    """What it shows, and the settings it follows."""
    return kind.summary + (f" [{', '.join(kind.settings)}]" if kind.settings else "")
