"""`tessearth plot`: every figure of the method by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, ModelOption, warn_if_untrained
from tessearth.errors import ConfigError, CoordinateError

if TYPE_CHECKING:
    from tessearth.figures.request import Request
    from tessearth.plotting.views import View

GIF = ".gif"


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
    from tessearth.figures.kinds import KINDS
    from tessearth.figures.request import Request

    if kind is None:
        print("\n".join(f"{name:<{max(map(len, KINDS))}}  {card.summary}" for name, card in KINDS.items()))
        return
    path = _check(kind, out, dpi)
    request = Request(
        model=model,
        view=_view(projection, region, center),
        device=device,
        run=run,
        store=store,
        token=token,
        tessellation=tessellation,
        columns=columns,
        width_cm=width,
        share=share,
        seed=seed,
        varied=x,
    )
    _work_out(kind, request, task=task, models=models, table=table, also=also or [])
    _write(kind, request, path, dpi, frames)
    print(path)
    if kind not in ("migration", "performance", "training"):
        warn_if_untrained(model)


def _check(kind: str, out: str | None, dpi: int) -> Path:
    """Say what is wrong before anything is computed."""
    from tessearth.figures.kinds import KINDS
    from tessearth.plotting.views import SUFFIXES, check_figure_path

    KINDS[kind]
    if out is None:
        raise ConfigError("say where the figure goes: --out FILE.png")
    if not 20 <= dpi <= 2400:
        raise ConfigError(f"dpi is {dpi}; it must lie between 20 and 2400")
    path = check_figure_path(out, (*SUFFIXES, GIF) if kind == "migration" else SUFFIXES)
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} to write {path.name} into")
    return path


def _view(projection: str | None, region: str | None, center: str | None) -> "View":
    from tessearth.plotting import build_view

    middle = None
    if center is not None:
        from tessearth.sphere.coordinates import check_latlon

        try:
            lat, lon = (float(part) for part in center.split(","))
        except ValueError:
            raise CoordinateError(f"center is {center!r}; give LAT,LON in degrees such as 45,10") from None
        import numpy as np

        check_latlon(np.array([lat, lon]))
        middle = (lat, lon)
    return build_view(projection, region, middle)


def _work_out(kind: str, request: "Request", *, task: str, models: str | None, table: str | None, also: Any) -> None:
    """What a figure needs beyond the model: predictions of probes, or scores."""
    if kind == "predictions":
        from tessearth.evaluation.runner import split_names
        from tessearth.figures.scores import predict

        names = [request.model, *(split_names(models) if models else [])]
        request.predicted = predict(names, task, device=request.device)
    if kind == "performance" and table is not None:
        from tessearth.figures.scores import read_scores

        request.scores = read_scores(Path(table), request.varied, dict(_also(text) for text in also))
    elif kind == "performance" and request.varied == "top_k":
        from tessearth.figures.scores import powers_up_to, score_top_k

        kept = powers_up_to(len(request.positions()))
        request.scores = score_top_k(request.model, kept, device=request.device)


def _also(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f"--also is {text!r}; give RUN=VALUE such as base=4096") from None


def _write(kind: str, request: "Request", path: Path, dpi: int, frames: int) -> None:
    from tessearth.figures.kinds import draw
    from tessearth.figures.scores import find_run, read_trajectory
    from tessearth.plotting import animate_migration, paper_style, save_figure

    with paper_style():
        if path.suffix.lower() == GIF:
            trajectory = read_trajectory(find_run(request.model, request.run))
            style: dict[str, Any] = {"share": request.share, "seed": request.seed, "frames": frames}
            style |= {} if request.width_cm is None else {"width_cm": request.width_cm}
            animate_migration(path, trajectory.steps, trajectory.positions, request.view, **style)
        else:
            save_figure(draw(kind, request), path, dpi)
