"""Runs a task's command in a container of its image, by the first of podman, docker and apptainer that is found.

The node's network and the task's folder are those of the node; the devices are the task's. The engine's client is the
task's process: signals reach the container through it. docker runs containers below a daemon of its own, so what is left
is removed by name when the client is gone.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from muster.agent.credentials import NAME as CREDENTIALS
from muster.agent.protocol import AgentTask
from muster.agent.runtimes import CannotRun, Launch
from muster.doors.images import ENTRYPOINT

ENGINES: Final = ("podman", "docker", "apptainer")
PULL_S: Final = 1800
HOSTFILE: Final = "MUSTER_HOSTFILE"
MEMBERS: Final = "MUSTER_MEMBERS"


class Container:
    """Containers, by whatever the node has for them."""

    name = "container"
    slow = True
    leaves_processes = True

    def check(self) -> str:
        """One of the engines must be there."""
        return "" if self._engine() else f"none of {', '.join(ENGINES)} is on the PATH"

    def prepare(self, task: AgentTask) -> None:
        """Have the image here. apptainer fetches it when it starts."""
        engine = self._engine()
        if not engine:
            raise CannotRun(self.check(), "node")
        if not task.run.image:
            raise CannotRun("the job has no image, which the container runtime needs", "job")
        if _kind(engine) == "apptainer" or _succeeds([engine, "image", "inspect", task.run.image], 60) is None:
            return
        problem = _succeeds([engine, "pull", "--quiet", task.run.image], PULL_S)
        if problem is not None:
            raise CannotRun(f"the image {task.run.image} cannot be had: {problem}", "node")

    def launch(self, task: AgentTask, environment: dict[str, str], directory: Path) -> Launch:
        """The engine's client with all that the container is to have."""
        engine = self._engine()
        passed = {name: value for name, value in environment.items() if name not in ("PATH", "HOME", "SHELL", "LD_LIBRARY_PATH")}
        kept = {name: value for name, value in environment.items() if name in ("PATH", "HOME", "LANG", "MUSTER_TASK")}
        devices = [uuid for uuid in environment.get("MUSTER_GPU_UUIDS", "").split(",") if uuid]
        if _kind(engine) == "apptainer":
            image = task.run.image if "://" in task.run.image or task.run.image.startswith("/") else f"docker://{task.run.image}"
            verb = "run" if not overrides(task) else "exec"
            bound = [part for path in _files(environment) for part in ("--bind", f"{path}:{path}:ro")]
            argv = [engine, verb, "--bind", str(directory), *bound, "--pwd", str(directory)]
            argv += [*(["--nv"] if devices else []), image]
            inside = {f"APPTAINERENV_{name}": value for name, value in passed.items()}
            return Launch(argv=(*argv, *task.run.command), environment={**kept, **inside}, directory=str(directory))
        argv = [engine, "run", "--rm", "--init", "--name", _container(environment["MUSTER_TASK"]), "--network", "host"]
        argv += ["--volume", f"{directory}:{directory}", "--workdir", str(directory)]
        argv += [part for path in _files(environment) for part in ("--volume", f"{path}:{path}:ro")]
        for name in sorted(passed):
            argv += ["--env", name]
        if devices and _kind(engine) == "docker":
            argv += ["--gpus", f'"device={",".join(devices)}"']
        elif devices:
            argv += [part for uuid in devices for part in ("--device", f"nvidia.com/gpu={uuid}")]
        group = next((group for group in task.request.groups if group.name == task.group), task.request.groups[0])
        if group.memory_mib:
            argv += ["--memory", f"{group.memory_mib}m"]
        if group.cpu_milli:
            argv += ["--cpus", f"{group.cpu_milli // 1000}.{group.cpu_milli % 1000:03}"]
        command = task.run.command
        if overrides(task):
            argv += ["--entrypoint", command[0]]
            command = command[1:]
        return Launch(argv=(*argv, task.run.image, *command), environment={**passed, **kept}, directory=str(directory))

    def cleanup(self, mark: str) -> tuple[tuple[str, ...], ...]:
        """Remove the container by its name."""
        engine = self._engine()
        return () if _kind(engine) == "apptainer" else ((engine, "rm", "--force", _container(mark)),)

    def _engine(self) -> str:
        return next((path for name in ENGINES if (path := shutil.which(name))), "")


RUNTIME = Container()


def overrides(task: AgentTask) -> bool:
    """Whether the job's command is run instead of the image's own, and is not only its arguments."""
    return bool(task.run.command) and task.run.environment.get(ENTRYPOINT) != "image"


def _kind(engine: str) -> str:
    return os.path.basename(engine)


def _files(environment: dict[str, str]) -> list[str]:
    """What the task finds beside its folder, under the same names inside."""
    return [environment[name] for name in (HOSTFILE, MEMBERS, CREDENTIALS) if name in environment]


def _container(mark: str) -> str:
    return "muster-" + "".join(sign if sign.isalnum() or sign in "_.-" else "-" for sign in mark)


def _succeeds(argv: list[str], timeout_s: int) -> str | None:
    """None when the command succeeds, else the last line of what it said."""
    try:
        result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if result.returncode == 0:
        return None
    return (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1][:300]
