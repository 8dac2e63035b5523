from tessearth.explorer.app import check_built as check_built
from tessearth.explorer.app import run_server as run_server
from tessearth.explorer.limits import ServeSettings as ServeSettings
from tessearth.explorer.session import Served as Served
