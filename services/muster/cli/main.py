"""`muster COMMAND`: finds the command's file and runs it, and turns every known failure into one sentence.

A command's file is imported only when it is called, so that `muster version` does not load NumPy.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from muster.cli.output import OK, UNREADABLE, USAGE, Failure, errors
from muster.cluster.check import BrokenInvariant
from muster.events.codec import UnknownKind
from muster.log.errors import OperatingError

COMMANDS = {
    "up": "muster.cli.up",
    "scheduler": "muster.cli.scheduler",
    "gateway": "muster.cli.gateway",
    "recover": "muster.cli.recover",
    "simulate": "muster.cli.simulate",
    "scenario": "muster.cli.scenario",
    "soak": "muster.cli.soak",
    "bench": "muster.cli.bench",
    "scoreboard": "muster.cli.scoreboard",
    "audit": "muster.cli.audit",
    "verify": "muster.cli.verify",
    "fsck": "muster.cli.fsck",
    "submit": "muster.cli.submit",
    "jobs": "muster.cli.jobs",
    "job": "muster.cli.job",
    "nodes": "muster.cli.nodes",
    "queues": "muster.cli.queues",
    "apply": "muster.cli.apply",
    "reserve": "muster.cli.reservations",
    "unreserve": "muster.cli.reservations",
    "reservations": "muster.cli.reservations",
    "policy": "muster.cli.policy",
    "catalogue": "muster.cli.catalogue",
    "logs": "muster.cli.logs",
    "cancel": "muster.cli.cancel",
    "scale": "muster.cli.services",
    "revise": "muster.cli.services",
    "rollback": "muster.cli.services",
    "metric": "muster.cli.services",
    "resize": "muster.cli.elastic",
    "checkpoint": "muster.cli.elastic",
    "cordon": "muster.cli.operations",
    "uncordon": "muster.cli.operations",
    "drain": "muster.cli.operations",
    "fence": "muster.cli.operations",
    "top": "muster.cli.top",
    "slurm": "muster.cli.slurm",
    "log": "muster.cli.log",
    "at": "muster.cli.at",
    "history": "muster.cli.history",
    "explain": "muster.cli.explain",
    "why-not": "muster.cli.why_not",
    "eta": "muster.cli.eta",
    "convert": "muster.cli.convert",
    "bus": "muster.cli.bus",
    "agent": "muster.cli.agent",
    "telemetry": "muster.cli.telemetry",
    "token": "muster.cli.token",
    "version": "muster.cli.version",
}
GROUPS = ("catalogue", "simulate", "scenario", "bench", "slurm", "bus", "agent", "telemetry", "token", "history", "policy")
"""Commands that have commands of their own."""


class Commands(TyperGroup):
    """The commands by their names, each loaded when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return [name for name, module in COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        app: typer.Typer = getattr(module, f"{cmd_name}_app", None) or module.app  # a file may hold several commands
        command = typer.main.get_group(app) if cmd_name in GROUPS else typer.main.get_command(app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=Commands,
    add_completion=True,
    rich_markup_mode="rich",
    epilog=(
        "Exit status: 0 all is well; 1 something wrong was found; 2 the command makes no sense; 3 something cannot be read; "
        "4 no gateway answers; 5 the gateway does not allow it."
    ),
)


@app.callback()
def muster() -> None:
    """Muster schedules GPU jobs on a cluster, and writes down everything it knew and everything it decided.

    LOG is the folder of a log, as `muster simulate` and `make demo` write one, or kafka://HOST:PORT. Commands that take none,
    and those where it may be left out, ask the gateway: MUSTER_GATEWAY, else http://127.0.0.1:8470, with the token of
    MUSTER_TOKEN.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    try:
        status = typer.main.get_command(app)(args=list(arguments) or ["--help"], prog_name="muster", standalone_mode=False)
    except Failure as failure:
        return _say(str(failure), failure.code)
    except (OperatingError, UnknownKind) as error:
        return _say(str(error), UNREADABLE)
    except BrokenInvariant as error:
        return _say(f"the log says what cannot be, or this build is wrong: {error}", UNREADABLE)
    except typer.TyperException as error:
        sentence = error.format_message() if hasattr(error, "format_message") else str(error)
        return _say(sentence, USAGE) if sentence else USAGE
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, and nobody is left to be told
        return OK
    except KeyboardInterrupt:
        return 130
    return status if isinstance(status, int) else OK


def main() -> None:
    """The entry point of `muster`."""
    sys.exit(run(sys.argv[1:]))


def _say(sentence: str, code: int) -> int:
    errors.print(f"muster: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
    return code
