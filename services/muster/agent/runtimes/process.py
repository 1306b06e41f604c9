"""Runs a task's command as a process of the node, as the agent's own user. Images are not run here.

A job whose image has a command of its own here (`images.toml`, looked up when it is submitted) comes with that command and
without the image.
"""

import sys
from pathlib import Path
from typing import Final

from muster.agent.protocol import AgentTask
from muster.agent.runtimes import CannotRun, Launch
from muster.doors.names import DOOR

SLURM: Final = (sys.executable, "-P", "-m", "muster.slurm")


class Process:
    """The plainest runtime."""

    name = "process"
    slow = False
    leaves_processes = False

    def check(self) -> str:
        """It can always be used."""
        return ""

    def prepare(self, task: AgentTask) -> None:
        """Nothing has to be fetched."""
        if task.run.image:
            raise CannotRun(f"the image {task.run.image} cannot be run by the process runtime: it has no command here", "job")
        if not task.run.command:
            raise CannotRun("the job has no command", "job")

    def launch(self, task: AgentTask, environment: dict[str, str], directory: Path) -> Launch:
        """The command as it is."""
        return Launch(argv=_command(task), environment=environment, directory=str(directory))

    def cleanup(self, mark: str) -> tuple[tuple[str, ...], ...]:
        """Nothing is left when the processes are gone."""
        return ()


RUNTIME = Process()


def _command(task: AgentTask) -> tuple[str, ...]:
    """The job's command; the first task of a Slurm job runs it with srun at hand, and the others wait for srun."""
    if task.run.environment.get(DOOR) != "slurm":
        return task.run.command
    return (*SLURM, "stepd") if task.rank else (*SLURM, "batch", *task.run.command)
