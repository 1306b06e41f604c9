"""`python -m muster.slurm NAME ARGUMENTS`. The program's file is imported only when it is called: a script calls many."""

import importlib
import sys

from muster.slurm.say import Refused, say

PROGRAMS = ("srun", "scontrol", "sbatch", "squeue", "scancel", "sinfo", "module")
"""What people call; `muster slurm install` writes a wrapper for each."""
INNER = ("batch", "stepd")
"""What Muster calls on the nodes of a job."""


def main(arguments: list[str]) -> int:
    """Run a program; its exit status."""
    name = arguments[0] if arguments else ""
    if name not in PROGRAMS + INNER:
        say("muster.slurm", f"there is no program {name!r}; there are {', '.join(PROGRAMS)}")
        return 2
    try:
        status: int = importlib.import_module(f"muster.slurm.{name}").main(arguments[1:])
    except Refused as refused:
        say(name, str(refused))
        return refused.status
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
