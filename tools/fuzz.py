"""Give damaged input to everything that takes input from outside, for a fixed time.

    .venv/bin/python tools/fuzz.py SURFACE ... [--seconds 600] [--seed 0] [--keep FOLDER]

A finding is any input that is neither taken nor refused by a TessearthError in one line: a crash, another exception,
more than ten seconds, memory out of proportion, or code, a process, a connection or a file elsewhere because of it.
Findings are kept as files to replay (tests/fuzz/corpus holds those that were mended), and the exit status is 1. One
line of JSON per surface says what was done.
"""

import argparse
import hashlib
import json
import os
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from tests.fuzz.harness import Outcome, fuzz  # noqa: E402
from tests.fuzz.surfaces import NAMES, load_surface  # noqa: E402


def main() -> None:
    """Run the surfaces named, or all of them, one after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("surface", nargs="*", choices=[*NAMES, []], help="all of them when none is named")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where findings are written")
    chosen = parser.parse_args()
    found = 0
    for name in chosen.surface or NAMES:
        before = _computed()
        outcome = fuzz(load_surface(name), seed=chosen.seed, seconds=chosen.seconds, note=_say)
        print(json.dumps(_summary(name, chosen.seed, outcome, _computed() - before)), flush=True)
        found += len(outcome.findings)
        for finding in outcome.findings:
            path = chosen.keep / name / f"{finding.kind}-{hashlib.sha256(finding.content).hexdigest()[:12]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(finding.content)
            _say(f"FOUND {finding.kind} {finding.where}\n  {path}\n{finding.words}")
    sys.exit(1 if found else 0)


def _computed() -> float:
    """Seconds of processor time that children took: on a busy machine much less than the clock says."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _summary(name: str, seed: int, outcome: Outcome, computed: float) -> dict[str, object]:
    return {
        "surface": name,
        "seed": seed,
        "cases": outcome.cases,
        "taken": outcome.well,
        "refused": outcome.refused,
        "seconds": round(outcome.seconds),
        "processor_seconds": round(computed),
        "findings": len(outcome.findings),
        "places": dict(outcome.repeated.most_common(40)),
    }


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
