"""The evaluation of embeddings: tasks, splits, probes, references and the geographic prior.

A task (`load_task`) gives places and a target; a split (`build_splits`) says which rows are learned from and which
tested on; a probe (`build_probe`) learns the target from embeddings; a reference (`build_reference`) from coordinates
alone, so that every table shows what an encoder adds. `evaluate` runs all of them over many models and writes a report;
`compare` says which differences between two such results exceed their spread.
"""

from tessearth.evaluation.metrics import METRICS, PerClass, accuracy, per_class, r2, score
from tessearth.evaluation.probes import PROBES, Probe, build_probe
from tessearth.evaluation.references import REFERENCES, build_reference
from tessearth.evaluation.results import Difference, Results, compare, read_results, write_results
from tessearth.evaluation.runner import evaluate
from tessearth.evaluation.splits import SPLITS, Split, block_ids, build_splits, check_no_leak
from tessearth.evaluation.tasks import TASKS, Task, check_task, load_task

__all__ = [
    "METRICS",
    "PROBES",
    "REFERENCES",
    "SPLITS",
    "TASKS",
    "Difference",
    "PerClass",
    "Probe",
    "Results",
    "Split",
    "Task",
    "accuracy",
    "block_ids",
    "build_probe",
    "build_reference",
    "build_splits",
    "check_no_leak",
    "check_task",
    "compare",
    "evaluate",
    "load_task",
    "per_class",
    "r2",
    "read_results",
    "score",
    "write_results",
]
