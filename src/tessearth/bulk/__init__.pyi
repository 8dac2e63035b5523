from tessearth.bulk.rasters import write_raster as write_raster
from tessearth.bulk.tables import ModelChoice as ModelChoice
from tessearth.bulk.tables import Runtime as Runtime
from tessearth.bulk.tables import TableJob as TableJob
from tessearth.bulk.tables import encode_table as encode_table
from tessearth.bulk.writers import check_width as check_width
from tessearth.bulk.writers import output_format as output_format
