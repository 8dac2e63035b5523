"""Runs a surface on damaged inputs in a process of its own, for so long or so many, and keeps what went wrong.

Case n of a seed is the same everywhere: its random numbers are a function of surface, seed and n. The process says
which case it is at; when it dies or is silent for too long, the parent knows which input did it and goes on with the
next.
"""

import faulthandler
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz import watch
from tests.fuzz.surfaces import Prepared, Surface

HANG_S = 10.0
"""A case may take so long; while other programs keep the processor busy, its own time counts, six times as much all."""
STARTING_S = 120.0
STATE = struct.Struct("<qddqqq")
"""The case at hand, when it began by the clock and by the process's own time, how many were well, refused, findings."""
CORPUS = Path(__file__).parent / "corpus"


class Finding(NamedTuple):
    """An input that did what no input may."""

    kind: str
    """exception, message (more than one line), memory, code, hang or crash."""
    where: str
    content: bytes
    words: str


class Outcome(NamedTuple):
    """What a run of a surface came to."""

    cases: int
    well: int
    refused: int
    seconds: float
    findings: list[Finding]
    repeated: Counter[str]
    """How often each place was found again."""


class Plan(NamedTuple):
    """Which cases are run; case n is the n-th given input, and damage to a seed after those."""

    surface: Surface
    seed: int
    cases: int | None
    given: Sequence[bytes] = ()

    def content(self, case: int, seeds: Sequence[bytes]) -> bytes:
        """The input of a case."""
        if case < len(self.given):
            return self.given[case]
        return self.surface.mutate(Random(f"{self.surface.name}/{self.seed}/{case}"), seeds)


def fuzz(
    surface: Surface,
    *,
    seed: int,
    seconds: float | None = None,
    cases: int | None = None,
    given: Sequence[bytes] = (),
    note: Callable[[str], None] = print,
) -> Outcome:
    """Run the inputs given and then damaged ones, until the time is over or so many cases are done."""
    start, plan = time.monotonic(), Plan(surface, seed, cases, given)
    state = mmap.mmap(-1, STATE.size)
    next_case = well = refused = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        while cases is None or next_case < cases:
            left = None if seconds is None else seconds - (time.monotonic() - start)
            if left is not None and left <= 0:
                break
            state[:] = STATE.pack(next_case - 1, time.monotonic(), 0.0, 0, 0, 0)
            child = os.fork()
            if child == 0:
                _run_child(plan, next_case, left, folder, state)
            ending = _wait(child, state, folder, note)
            case, _, _, more_well, more_refused, _ = STATE.unpack(state[:])
            next_case, well, refused = case + 1, well + more_well, refused + more_refused
            if ending is None:
                break
            _keep(folder, plan, case, ending)
        findings, repeated = _collect(folder)
    return Outcome(next_case, well, refused, time.monotonic() - start, findings, repeated)


def corpus_of(surface: Surface) -> list[bytes]:
    """The inputs that once were findings."""
    return [path.read_bytes() for path in sorted((CORPUS / surface.name).glob("*")) if path.is_file()]


def _run_child(plan: Plan, first: int, seconds: float | None, folder: Path, state: mmap.mmap) -> None:
    """Prepare and loop over cases; never returns."""
    status = 1
    try:
        log = open(folder / "crash.log", "w")  # noqa: SIM115
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR1, log)
        warnings.simplefilter("ignore")
        sys.dont_write_bytecode = True  # what a library imports late leaves no file
        inside = folder / "inputs"
        inside.mkdir(exist_ok=True)
        watching = watch.Watch(inside)
        prepared = plan.surface.prepare(inside)
        for content in prepared.seeds:  # what they import and allocate once is not a case's doing
            prepared.run(content)
        watch.limit_memory()
        _loop(plan, first, seconds, folder, state, watching, prepared)
        status = 0
    except BaseException:
        (folder / "broken.log").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _loop(
    plan: Plan,
    first: int,
    seconds: float | None,
    folder: Path,
    state: mmap.mmap,
    watching: watch.Watch,
    prepared: Prepared,
) -> None:
    counts = Counter[str]()
    end = None if seconds is None else time.monotonic() + seconds
    case = first
    while (plan.cases is None or case < plan.cases) and (end is None or time.monotonic() < end):
        content = plan.content(case, prepared.seeds)
        _note(state, case, counts)
        kind, problem = watch.outcome_of(lambda: prepared.run(content), watching, prepared.accepted)  # noqa: B023
        if kind not in {"ok", "refused"}:
            _write(folder, case, Finding(kind, _where(problem), content, _words(problem)))
        counts[kind if kind in {"ok", "refused"} else "found"] += 1
        _note(state, case, counts)
        case += 1


def _note(state: mmap.mmap, case: int, counts: Counter[str]) -> None:
    now = time.monotonic(), time.process_time()
    state[:] = STATE.pack(case, *now, counts["ok"], counts["refused"], counts["found"])


def _wait(child: int, state: mmap.mmap, folder: Path, note: Callable[[str], None]) -> str | None:
    """Wait for a child to end well (None), or say how it ended: "hang" or "crash ..."."""
    said = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if os.waitstatus_to_exitcode(status) == 0:
                return None
            broken = folder / "broken.log"
            if broken.is_file():
                raise RuntimeError(f"the harness itself broke:\n{broken.read_text()}")
            return f"crash {os.waitstatus_to_exitcode(status)} {_last_words(folder)}"
        case, began, spent, well, refused, found = STATE.unpack(state[:])
        patience = HANG_S if well + refused + found else STARTING_S
        waited = time.monotonic() - began
        if waited > patience and (_processor_time(child) - spent > patience or waited > 6 * patience):
            os.kill(child, signal.SIGUSR1)  # it says where it is
            time.sleep(0.2)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"hang {_last_words(folder)}"
        if time.monotonic() - said > 60:
            said = time.monotonic()
            note(f"  case {case}: {well} well, {refused} refused, {found} findings")
        time.sleep(0.02)


def _processor_time(process: int) -> float:
    """Seconds a process has computed, all of its threads together."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _last_words(folder: Path) -> str:
    log = folder / "crash.log"
    return log.read_text()[-1500:] if log.is_file() else ""


def _keep(folder: Path, plan: Plan, case: int, ending: str) -> None:
    """The input a dead child was at, made again in a child of its own: it may take what the surface prepares."""
    child = os.fork()
    if child == 0:
        try:
            inside = folder / "again"
            inside.mkdir(exist_ok=True)
            content = plan.content(case, plan.surface.prepare(inside).seeds)
            _write(folder, case, Finding(ending.split(maxsplit=1)[0], ending[:60].replace("\n", " "), content, ending))
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _write(folder: Path, case: int, finding: Finding) -> None:
    (folder / f"finding-{case}.input").write_bytes(finding.content)
    (folder / f"finding-{case}.words").write_text(f"{finding.kind}\n{finding.where}\n{finding.words}", errors="replace")


def _collect(folder: Path) -> tuple[list[Finding], Counter[str]]:
    """Findings, the first for every kind and place, and how often each came."""
    first: dict[str, Finding] = {}
    repeated: Counter[str] = Counter()
    for path in sorted(folder.glob("finding-*.words"), key=lambda path: int(path.stem.split("-")[1])):
        kind, where, words = path.read_text().split("\n", 2)
        finding = Finding(kind, where, path.with_suffix(".input").read_bytes(), words)
        first.setdefault(f"{kind} {where}", finding)
        repeated[f"{kind} {where}"] += 1
    return list(first.values()), repeated


def _where(problem: BaseException | None) -> str:
    """The kind of error and the innermost line of ours it passed."""
    if problem is None:
        return ""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if "/tessearth/" in frame.filename]
    at = f"{Path(frames[-1].filename).name}:{frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{type(problem).__name__} {at}"


def _words(problem: BaseException | None) -> str:
    return "" if problem is None else "".join(traceback.format_exception(problem))[-3000:]
