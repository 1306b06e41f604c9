"""How an agent runs a command: runtimes are plugins, one a file, found by their names.

A runtime makes, from a task and its environment, the command that a supervisor starts. It starts nothing itself.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol

import msgspec

from muster.agent.protocol import AgentTask


class CannotRun(Exception):
    """The task cannot be run here; `blame` says whose fault that is."""

    def __init__(self, reason: str, blame: str) -> None:
        super().__init__(reason)
        self.blame = blame


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor starts."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    directory: str


class Runtime(Protocol):
    """One way of running commands."""

    name: str
    slow: bool
    """Whether `prepare` may take long: then it is called in a thread."""
    leaves_processes: bool
    """Whether it keeps processes of its own that belong to no task (and that a sweep must leave alone)."""

    def check(self) -> str:
        """Why it cannot be used on this node; empty where it can."""

    def prepare(self, task: AgentTask) -> None:
        """Get what the task needs (an image). Raises `CannotRun`."""

    def launch(self, task: AgentTask, environment: dict[str, str], directory: Path) -> Launch:
        """The command to start. Raises `CannotRun`."""

    def cleanup(self, mark: str) -> tuple[tuple[str, ...], ...]:
        """Commands that remove what may be left of the task with this mark, once its processes are gone."""


class UnknownRuntime(ValueError):
    """There is no runtime of this name."""


def names() -> list[str]:
    """The runtimes that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Runtime:
    """The runtime of this name. Raises `UnknownRuntime`."""
    if name not in names():
        raise UnknownRuntime(f"there is no runtime {name}; there are {', '.join(names())}")
    runtime: Runtime = importlib.import_module(f"{__name__}.{name}").RUNTIME
    return runtime
