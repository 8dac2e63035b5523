"""Labels of places: climate, country, land, temperature, rain, elevation, population, housing.

`load_benchmark()` gives 40,000 places on land with every label, kept in the cache; `prepare_labels(latlon)` gives the
same labels anywhere; `load_outlines()` gives the countries' outlines for maps.
"""

from tessearth.labels.benchmark import LabelTable, benchmark_path, benchmark_places, load_benchmark, read_benchmark
from tessearth.labels.countries import country_continents, country_names
from tessearth.labels.outlines import Outline, load_outlines
from tessearth.labels.sources import SOURCES
from tessearth.labels.table import LABELS, Label, describe_labels, prepare_labels

__all__ = [
    "LABELS",
    "SOURCES",
    "Label",
    "LabelTable",
    "Outline",
    "benchmark_path",
    "benchmark_places",
    "country_continents",
    "country_names",
    "describe_labels",
    "load_benchmark",
    "load_outlines",
    "prepare_labels",
    "read_benchmark",
]
