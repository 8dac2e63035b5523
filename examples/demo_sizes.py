"""What the demo looks at, and how much of everything it does: the full one, and one to see that it runs."""

from dataclasses import dataclass

PLACES = {
    "Manaus, Amazon": (-3.12, -60.02),
    "central Sahara": (24.0, 10.0),
    "Paris": (48.86, 2.35),
    "Lhasa, Tibet": (29.65, 91.12),
    "Yakutia, Siberia": (63.0, 125.0),
    "Australian outback": (-25.0, 130.0),
}
TASKS = {
    "koppen": "climate class, 30 kinds",
    "temperature": "yearly mean temperature",
    "elevation": "height above the sea",
    "population": "people within reach, log",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    places: int = 10_000
    """With labels, for probes and the evaluation."""
    columns: int = 420
    """How many pixels the maps are wide."""
    lattice_step: int = 1
    """Every so many of the places on land are compared with."""
    tasks: tuple[str, ...] = tuple(TASKS)
    recipe: tuple[str, ...] = ()
    """Changes of the smoke recipe."""
    splits: tuple[str, ...] = ("random", "10deg")
    references: bool = True
    """Whether what coordinates alone give stands beside the models."""


SIZES = {
    "full": Size(),
    "quick": Size(
        places=800,
        columns=60,
        lattice_step=16,
        tasks=("koppen", "elevation"),
        recipe=("features.places.count=200", "training.epochs=3", "training.batch_size=64"),
        splits=("random",),
        references=False,
    ),
}
