"""The evaluation of embeddings: tasks, splits, probes, references and the geographic prior.

A task (`load_task`) gives places and a target; a split (`build_splits`) says which rows are learned from and which
tested on; a probe (`build_probe`) learns the target from embeddings; a reference (`REFERENCES`) from coordinates
alone, so that every table shows what an encoder adds. `evaluate` runs all of them over many models and writes a report;
`compare` says which differences between two such results exceed their spread.
"""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
