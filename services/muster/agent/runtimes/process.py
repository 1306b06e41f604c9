"""Runs a task's command as a process of the node, as the agent's own user. Images are not run here.

A job whose image has a command of its own here (`images.toml`, looked up when it is submitted) comes with that command and
without the image.
"""

from pathlib import Path

from muster.agent.protocol import AgentTask
from muster.agent.runtimes import CannotRun, Launch


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
        return Launch(argv=task.run.command, environment=environment, directory=str(directory))

    def cleanup(self, mark: str) -> tuple[tuple[str, ...], ...]:
        """Nothing is left when the processes are gone."""
        return ()


RUNTIME = Process()
