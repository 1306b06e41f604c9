"""`python -m muster.bench.pipeline.program MODULE ...`: a program of the stack, with counters inside.

It runs the module as `python -m MODULE ...` would. What the scheduler's loop spends its time on is counted by the product
itself (`muster.scheduler.spent`); where the process is when it uses its processor is sampled a hundred times a second of
processor time. A line on standard input asks for both, since the last time.
"""

import functools
import os
import resource
import runpy
import signal
import sys
import threading
from types import FrameType
from typing import Any

import msgspec

from muster.bench.pipeline.report import Inside
from muster.scheduler import loop
from muster.scheduler.spent import Spent

SAMPLE_S = 0.01
KNOWN = ("muster", "uvicorn", "litestar")


class Samples:
    """Where the process was: the deepest function of Muster or of its server that was being executed."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def take(self) -> dict[str, int]:
        """What there was since this was asked last."""
        counts, self.counts = self.counts, {}
        return counts

    def _sample(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if module == "__main__" and frame.f_globals.get("__spec__") is None:
                module = "muster.up.stack"
            if module.partition(".")[0] in KNOWN and module != __name__:
                break
            frame = frame.f_back
        where = "elsewhere" if frame is None else f"{module}:{frame.f_code.co_qualname}"
        self.counts[where] = self.counts.get(where, 0) + 1


def _answer(spent: Spent, samples: Samples) -> None:
    """Answer each line of standard input with what was counted; when there is none any more, the process ends."""
    used_s = 0.0
    for _ in sys.stdin:
        now = resource.getrusage(resource.RUSAGE_SELF)
        now_s = now.ru_utime + now.ru_stime
        found = Inside(
            cpu_s=now_s - used_s,
            memory_mib=now.ru_maxrss / 1024,
            cycles=spent.cycles,
            phases_us=dict(spent.phases_us),
            cycles_us=list(spent.cycles_us),
            functions=samples.take(),
        )
        used_s = now_s
        spent.clear()
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)


def main(module: str, arguments: list[str]) -> None:
    """Run the module."""
    spent = Spent()
    counted: Any = functools.partial(loop.Scheduler, spent=spent)
    loop.Scheduler = counted  # type: ignore[misc]  # whoever imports it from here on gets one that counts for us
    threading.Thread(target=_answer, args=(spent, Samples()), daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
