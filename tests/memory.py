"""The highest memory that a process held.

A process that was just started counts the memory of the one that started it in its `ru_maxrss`, so nothing it does
shows beside a large test run. Code that tests hand to `python -c` asks for `peak()`, which knows of no parent; commands
are started by a small process in between.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024
"""

BETWEEN = """
import os, subprocess, sys
_, status, usage = os.wait4(subprocess.Popen(sys.argv[2:]).pid, 0)
open(sys.argv[1], "w").write(str(usage.ru_maxrss * 1024))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_of(*command: str, threads: int) -> int:
    """Run a command to its end and return its peak resident memory in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "peak"
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([sys.executable, "-S", "-c", BETWEEN, str(found), *command], env=environment, check=True)
        return int(found.read_text())
