"""What a newcomer sees first: a few named places, their embeddings, and the sites that speak for them.

make demo
"""

import numpy as np

import tessearth
from tessearth.geometry import xyz_to_latlon
from tessearth.models import DEFAULT_MODEL, MODELS

PLACES = {
    "Paris": (48.857, 2.352),
    "Nairobi": (-1.292, 36.822),
    "Manaus": (-3.119, -60.022),
    "Central Sahara": (24.0, 10.0),
    "Mount Everest": (27.988, 86.925),
    "Reykjavik": (64.147, -21.943),
    "Suva, Fiji": (-18.142, 178.442),
    "Mid Pacific": (0.0, -150.0),
}


def spoken(lat: float, lon: float) -> str:
    return f"{abs(lat):5.1f}{'S' if lat < 0 else 'N'} {abs(lon):6.1f}{'W' if lon < 0 else 'E'}"


def main() -> None:
    card = MODELS[DEFAULT_MODEL]
    print(f"tessearth {tessearth.__version__}, model {DEFAULT_MODEL!r}: {card.summary}")
    if not card.trained:
        print(
            "NOTE: these weights are UNTRAINED. The numbers below show how the encoder is used; they say nothing yet\n"
            "about what is at a place. Only the sites' positions, on land all over the Earth, are meaningful."
        )

    embed = tessearth.Embedder(DEFAULT_MODEL)
    latlon = np.array(list(PLACES.values()))
    embeddings, support, nearest = embed(latlon), embed.support(latlon), embed.nearest_sites(latlon, count=3)
    sites = xyz_to_latlon(embed.encoder.site_positions()).numpy()

    print(f"\n1. Embeddings: {embeddings.shape[0]} places -> {embeddings.shape[1]} numbers each, of length 1")
    for name, vector in zip(PLACES, embeddings, strict=True):
        print(f"   {name:<15} {' '.join(f'{value:+.3f}' for value in vector[:8])} ...")

    print("\n2. The three nearest of", embed.encoder.config.num_sites, "sites, and how well they cover the place")
    for i, name in enumerate(PLACES):
        near = ", ".join(
            f"{spoken(*sites[site])} ({distance:.1f} deg)"
            for site, distance in zip(nearest.site[i], nearest.distance[i], strict=True)
        )
        print(f"   {name:<15} {near};  effective sites {np.exp(support.entropy[i]):.0f}")
    print("   Far from land the nearest site is far too: an embedding there is a guess, and the support score says so.")

    print("\n3. From here")
    print("   tessearth encode 48.857 2.352 --json")
    print("   tessearth encode --input points.csv --output embeddings.parquet")
    print("   tessearth info")


if __name__ == "__main__":
    main()
