"""Every figure of the method as a function: an axis comes in, with arrays, and goes out drawn.

    from tessearth.plotting import build_view, draw_sites, new_figure, save_figure

    figure, axis = new_figure()
    draw_sites(axis, encoder.sites().positions.detach().numpy(), build_view(region="europe"))
    save_figure(figure, "sites.pdf")

`tessearth.figures` makes whole figures from a model or a run, as `tessearth plot KIND` does.
"""

from tessearth.plotting.colours import Components, fit_components
from tessearth.plotting.curves import Score, draw_losses, draw_performance, draw_retrieval
from tessearth.plotting.ground import draw_ground
from tessearth.plotting.places import Predicted, draw_classes, draw_embeddings, draw_numbers, draw_predictions
from tessearth.plotting.sites import (
    animate_migration,
    draw_cells,
    draw_migration,
    draw_sharpness,
    draw_site_embeddings,
    draw_sites,
)
from tessearth.plotting.tokens import draw_token_map, draw_token_use
from tessearth.plotting.views import REGIONS, View, build_view, new_figure, paper_style, save_figure

__all__ = [
    "REGIONS",
    "Components",
    "Predicted",
    "Score",
    "View",
    "animate_migration",
    "build_view",
    "draw_cells",
    "draw_classes",
    "draw_embeddings",
    "draw_ground",
    "draw_losses",
    "draw_migration",
    "draw_numbers",
    "draw_performance",
    "draw_predictions",
    "draw_retrieval",
    "draw_sharpness",
    "draw_site_embeddings",
    "draw_sites",
    "draw_token_map",
    "draw_token_use",
    "fit_components",
    "new_figure",
    "paper_style",
    "save_figure",
]
