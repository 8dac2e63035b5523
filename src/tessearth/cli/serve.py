"""`tessearth serve`: a model behind HTTP; `tessearth explore`: the same with a globe in the browser."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli import commands, options

if TYPE_CHECKING:
    from tessearth.explorer import Served

KEY_VARIABLE = "TESSEARTH_API_KEY"
HostOption = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")]
PortOption = Annotated[int, typer.Option(help="The port to listen on; 0 takes any that is free.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key", metavar="TEXT", help=f"Ask for this key; ${KEY_VARIABLE} keeps it out of the history."),
]
TrajectoriesOption = Annotated[
    str | None,
    typer.Option(
        "--trajectories", metavar="NPZ", help="The trajectories of the sites [default: those next to the model]."
    ),
]


def serve(
    model: options.Model = options.DEFAULT_MODEL,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8737,
    api_key: KeyOption = None,
    rate: Annotated[float, typer.Option(help="Requests a second from one client; 0 sets no limit.")] = 1000.0,
    max_points: Annotated[int, typer.Option(help="Places that one request may hold.")] = 65_536,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is given up.")] = 60.0,
    trajectories: TrajectoriesOption = None,
    cache: options.Cache = True,
    device: options.Device = None,
) -> None:
    """Serve a model over HTTP: /embed, /similar, /predict, /sites, /cells, /tokens, map tiles.

    tessearth serve --model earth --port 8737

    /openapi.json describes every address.
    """
    from tessearth.explorer import run_server

    limits = {"rate": rate, "max_points": max_points, "timeout_s": timeout}
    run_server(_open(model, device, api_key, trajectories, cache, **limits), host, port)


def explore(
    model: options.Model = options.DEFAULT_MODEL,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8737,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    api_key: KeyOption = None,
    trajectories: TrajectoriesOption = None,
    cache: options.Cache = True,
    device: options.Device = None,
) -> None:
    """Explore a model on a globe in the browser: places, similar places, sites, tokens, maps from your own labels.

    tessearth explore --model earth
    """
    from tessearth.explorer import check_built, run_server

    page = check_built()
    served = _open(model, device, api_key, trajectories, cache)
    run_server(served, host, port, page=page, open_browser=browser)


def _open(
    model: str, device: str | None, api_key: str | None, trajectories: str | None, cache: bool, **limits: float
) -> "Served":
    """The model, opened to be served."""
    from tessearth.embedding import Embedder, EmbeddingCache
    from tessearth.explorer import Served, ServeSettings
    from tessearth.packages import require

    require("fastapi", extra="serve", what="the server")
    settings = ServeSettings(api_key=api_key or os.environ.get(KEY_VARIABLE) or None, **limits)  # type: ignore[arg-type]
    embedder = Embedder(model, device=device)
    served = Served(embedder, settings, trajectories=trajectories, cache=EmbeddingCache() if cache else None)
    commands.warn_if_untrained(model)
    return served
