"""Location encoders: turn a latitude and longitude into an embedding that knows what is there.

    import tessearth

    tessearth.embed(48.86, 2.35)                    # by the default model, which is loaded once
    embed = tessearth.Embedder("earth-small")       # any model, device, precision
    embed(lat=[48.86, -1.29], lon=[2.35, 36.82])

Importing this package loads no torch; each public name brings its module in when first used.
"""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
