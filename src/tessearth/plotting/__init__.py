"""Every figure of the method as a function: an axis comes in, with arrays, and goes out drawn.

    from tessearth.plotting import build_view, draw_sites, new_figure, save_figure

    figure, axis = new_figure()
    draw_sites(axis, encoder.sites().positions.detach().numpy(), build_view(region="europe"))
    save_figure(figure, "sites.pdf")

`tessearth.figures` makes whole figures from a model or a run, as `tessearth plot KIND` does.
"""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
