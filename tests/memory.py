"""The highest memory that a process held, for code that tests hand to `python -c`.

`ru_maxrss` will not do: a process that was just started has the highest memory of the one that started it, so nothing
it does shows beside a large test run.
"""

PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024
"""
