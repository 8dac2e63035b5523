"""Labels of places: climate, country, land, temperature, rain, elevation, population, housing.

`load_benchmark()` gives 40,000 places on land with every label, kept in the cache; `prepare_labels(latlon)` gives the
same labels anywhere.
"""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
