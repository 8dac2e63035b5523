"""`tessearth explore`: a model on a globe, in the browser."""

from typing import Annotated

import typer

from tessearth.cli import options
from tessearth.cli.serve import HostOption, KeyOption, PortOption, TrajectoriesOption, run


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
    from tessearth.explorer.app import check_built

    page = check_built()
    run(model, device, (host, port), api_key, trajectories, cache, {}, page=page, open_browser=browser)
