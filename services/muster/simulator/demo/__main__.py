"""The demo as a program: plays it, looks at what is left, says what that proved. Exit status 0 only if all held.

`MUSTER_DEMO_PLANT` puts one fault in on purpose, which must then be found and named, with exit status 1. The log, and what the
jobs printed, is left in the folder that is given as the only argument, or else in a new temporary one.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from muster.simulator.demo.checks import Check, check
from muster.simulator.demo.play import Play
from muster.simulator.demo.processes import Stuck
from muster.simulator.demo.table import Screen

PLANTS = ("double-start", "lost-job", "altered-log", "no-preempt")


def main() -> int:
    """Play, check, say."""
    console = Console()
    plant = os.environ.get("MUSTER_DEMO_PLANT", "")
    if plant and plant not in PLANTS:
        console.print(f"MUSTER_DEMO_PLANT is {plant!r}; known are {', '.join(PLANTS)}", style="red", markup=False)
        return 2
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-demo-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.sqlite*")):
        console.print(f"{folder} holds a log already: remove it first", style="red", markup=False)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # so that what was started is killed
    begun = time.monotonic()
    if plant:
        console.print(f"planted: {plant}", style="bold yellow")
    try:
        with Screen(console) as screen:
            evidence = Play(folder, screen, plant).run()
    except Stuck as error:
        console.print(f"FAILED: {error}", style="bold red", highlight=False)
        return 1
    console.print()
    checks = check(evidence)
    for found in checks:
        _say(console, found)
    if len(checks) == 1:
        console.print("          nothing else was looked at: what is not whole proves nothing", style="red", highlight=False)
    faults = sorted({found.fault for found in checks if found.problems})
    console.print()
    if faults:
        console.print(f"FAILED: {', '.join(faults)}", style="bold red", highlight=False)
    else:
        took_s = time.monotonic() - begun
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        console.print(
            f"All held, in {took_s:.0f} s. The log is in {shown}: try", style="bold green", highlight=False, soft_wrap=True
        )
        console.print(f"  .venv/bin/muster log {shown} --type InstancePreempted", highlight=False, soft_wrap=True)
        console.print(f"  .venv/bin/muster job gang --log {shown}", highlight=False, soft_wrap=True)
        console.print(f"  tail -n 1 {shown}/work/gang-*.out", highlight=False, soft_wrap=True)
    return 1 if faults else 0


def _say(console: Console, found: Check) -> None:
    if not found.problems:
        console.print(f"  held    {found.text}", style="green", highlight=False, markup=False, soft_wrap=not console.is_terminal)
        return
    for problem in found.problems[:5]:
        console.print(f"  FAULT   {found.fault}: {problem}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    if len(found.problems) > 5:
        console.print(f"          and {len(found.problems) - 5} more", style="red", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
