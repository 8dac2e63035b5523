"""`tessearth explore`: a model on a globe, in the browser."""

from typing import Annotated

import typer

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, ModelOption
from tessearth.cli.serve import CacheOption, HostOption, KeyOption, PortOption, TrajectoriesOption, run


def explore(
    model: ModelOption = DEFAULT_MODEL,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8737,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    api_key: KeyOption = None,
    trajectories: TrajectoriesOption = None,
    cache: CacheOption = True,
    device: DeviceOption = None,
) -> None:
    """Explore a model on a globe: what it says of places, places alike, sites, tokens, maps from your own labels."""
    from tessearth.explorer.page import check_built

    page = check_built()
    run(model, device, (host, port), api_key, trajectories, cache, {}, page=page, open_browser=browser)
