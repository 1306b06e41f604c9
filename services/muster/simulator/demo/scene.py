"""What the demo plays: the jobs that people hand in, as the files in `workload`, and the cluster they are handed to.

It says what there is, not how it is carried out (`play`) nor what must come of it (`checks`).
"""

from typing import Literal

import msgspec

NODES = ("a0", "a1")
DEVICES = "8xH100-80GB"
"""Simulated, of each node; everything else is real."""
QUEUE = "gpu"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the demo."""

    name: str
    file: str
    letter: str
    """In the table."""
    ranks: int
    """Processes that must come to their end."""
    hold: str = ""
    """It trains for as long as this file is there."""
    output: str = ""
    """Where its output lies, as a glob; else where the agents keep it."""
    ends: Literal["finished", "cancelled"] = "finished"
    """What must become of it."""


POD = Work(name="gpu-training-pod", file="gpu-training-pod.yaml", letter="K", ranks=1)
SCRIPT = Work(name="deep-learning", file="deep_learning.sbatch", letter="S", ranks=4, output="slurm-*.out")
GANG = Work(name="gang", file="gang.yaml", letter="G", ranks=12, hold="hold-gang", output="gang-*.out")
URGENT = Work(name="urgent", file="urgent.yaml", letter="U", ranks=2, hold="hold-urgent", output="urgent-*.out")
WORK = (POD, SCRIPT, GANG, URGENT)
