from tessearth.figures.kinds import KINDS as KINDS
from tessearth.figures.kinds import check_figure as check_figure
from tessearth.figures.kinds import write_figure as write_figure
from tessearth.figures.request import Request as Request
from tessearth.figures.request import read_settings as read_settings
from tessearth.figures.request import read_view as read_view
