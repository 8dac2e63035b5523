"""What starting costs: processor time of whole processes, from nothing to the embedding of one place.

    .venv/bin/python benchmarks/cold_start.py [--rounds 4]

Processor time of a process and its children, not the clock's, which other programs lengthen. Rounds take turns and the
least of each counts; nothing that embeds can go below `import torch` alone. Prints a table in markdown.
"""

import argparse
import resource
import subprocess
import sys

ENCODE = ("encode", "48.9", "2.3")
UNTRAINED = ("--model", "untrained")
FLOOR = 'python -c "import torch"'
COMMANDS = {
    FLOOR: ("-c", "import torch"),
    **{
        " ".join(("tessearth", *words)): ("-m", "tessearth", *words)
        for words in (("--help",), ENCODE, (*ENCODE, *UNTRAINED))
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            seconds[name].append(processor_seconds([sys.executable, *arguments]))
    least = {name: min(taken) for name, taken in seconds.items()}
    print(f"Processor seconds of a whole process, best of {rounds} in turns:\n")
    print("| process | seconds | x import torch | most |\n| --- | ---: | ---: | ---: |")
    for name, best in least.items():
        print(f"| `{name}` | {best:.2f} | {best / least[FLOOR]:.2f} | {max(seconds[name]):.2f} |")


def processor_seconds(command: list[str]) -> float:
    """What a process and its children spent on the processor, in user and system time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
