"""`python -m muster.bench.memory nodes|pending N`: how much memory so many nodes, or pending jobs, take; in MiB.

It runs in a process of its own, because memory that was given back before would hide what is taken now. The records are
not kept: what is measured is the scheduler, not its log.
"""

import gc
import resource
import subprocess
import sys

from muster.bench.cell import INPUTS_A_CYCLE, Cell
from muster.bench.mix import GPUS_A_NODE
from muster.events.jobs import GroupRequest

SHAPES = 500


def measured_mib(what: str, count: int) -> float:
    """What `python -m muster.bench.memory` says."""
    command = [sys.executable, "-m", "muster.bench.memory", what, str(count)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def resident_mib() -> float:
    """What this process has in memory now; where the system does not say, the most it ever had."""
    gc.collect()
    try:
        with open("/proc/self/statm") as text:
            return int(text.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 1024)


def _nodes(count: int) -> float:
    cell = Cell(0, keep=False)
    before = resident_mib()
    cell.register(count)
    return resident_mib() - before


def _pending(count: int) -> float:
    """Jobs of 500 shapes that wait for the GPUs of one full node."""
    cell = Cell(0, keep=False)
    cell.register(1)
    cell.submit(GroupRequest(gpus=GPUS_A_NODE))
    cell.drain()
    before = resident_mib()
    for number in range(count):
        cell.submit(GroupRequest(cpu_milli=1000 + 10 * (number % SHAPES), memory_mib=1024, gpus=1 + number % 2))
        if len(cell.outbox) == INPUTS_A_CYCLE:
            cell.cycle()
    cell.drain()
    return resident_mib() - before


if __name__ == "__main__":
    print({"nodes": _nodes, "pending": _pending}[sys.argv[1]](int(sys.argv[2])))
