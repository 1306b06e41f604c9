"""`python -m muster.slurm NAME ARGUMENTS`. The program's file is imported only when it is called: a script calls many."""

import importlib
import sys

from muster.slurm.say import Refused, say

PROGRAMS = {
    "srun": "muster.slurm.srun",
    "scontrol": "muster.slurm.scontrol",
    "sbatch": "muster.slurm.sbatch",
    "squeue": "muster.slurm.squeue",
    "scancel": "muster.slurm.scancel",
    "sinfo": "muster.slurm.sinfo",
    "module": "muster.slurm.module",
}
"""What people call; `muster slurm install` writes a wrapper for each."""
INNER = {"batch": "muster.slurm.batch", "stepd": "muster.slurm.stepd"}
"""What Muster calls on the nodes of a job."""


def main(arguments: list[str]) -> int:
    """Run a program; its exit status."""
    name = arguments[0] if arguments else ""
    module = (PROGRAMS | INNER).get(name)
    if module is None:
        say("muster.slurm", f"there is no program {name!r}; there are {', '.join(PROGRAMS)}")
        return 2
    try:
        status: int = importlib.import_module(module).main(arguments[1:])
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
