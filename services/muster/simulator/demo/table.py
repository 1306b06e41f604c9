"""What a person sees while the demo plays: nodes with their GPUs, jobs, and what happened last. It decides nothing."""

from collections import Counter, deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from muster.cluster.jobs import Job
from muster.cluster.nodes import Node
from muster.cluster.state import State
from muster.simulator.demo.scene import WORK

LINES = 6
COLOURS = ("cyan", "green", "magenta", "yellow")
LETTERS = {work.name: (work.letter, colour) for work, colour in zip(WORK, COLOURS, strict=True)}
PHASES = ("running", "starting", "stopping", "pending", "finished", "cancelled", "failed", "rejected")


class Screen:
    """A live table on a terminal; elsewhere only the lines of what happened."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lines: deque[Text] = deque(maxlen=LINES)
        self.leader = ""
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None

    def __enter__(self) -> "Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, at_s: float, text: str, style: str = "") -> None:
        """Something happened."""
        line = Text(f"{at_s:6.1f} s  {text}", style=style)
        self.lines.append(line)
        if self._live is None:
            self.console.print(line, highlight=False, soft_wrap=True)

    def show(self, state: State, at_s: float) -> None:
        """Draw the state as the log has it."""
        if self._live is not None:
            self._live.update(draw(state, at_s, self.leader, list(self.lines)), refresh=True)


def draw(state: State, at_s: float, leader: str, lines: list[Text]) -> RenderableType:
    """One picture."""
    both = Table.grid(padding=(0, 3))
    both.add_row(_nodes(state), _jobs(state))
    head = Text(f"{at_s:6.1f} s   cycle {state.number}, term {state.term}   scheduler: ", style="bold")
    head.append(leader, style="bold red" if "killed" in leader else "bold green")
    lines = [*lines, *[Text("")] * (LINES - len(lines))]
    return Group(head, Text(""), both, Text(""), *lines)


def _nodes(state: State) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("node", "GPUs", "state"):
        table.add_column(column)
    for node in state.nodes:
        if node is not None:
            table.add_row(node.name, _devices(node), _condition(node))
    return table


def _devices(node: Node) -> Text:
    """A letter for each GPU: whose it is; small where it is shared; x where it failed."""
    users: dict[int, list[str]] = {}
    for task in node.tasks:
        for index in task.devices:
            users.setdefault(index, []).append(task.attempt.instance.job.name)
    text = Text()
    for index, device in enumerate(node.devices):
        names = users.get(index, [])
        if device.health == "failed":
            text.append("x ", style="bold red")
        elif not names:
            text.append("· ", style="dim")
        else:
            letter, colour = LETTERS[names[0]]
            whole = node.devices[index].units <= sum(_units(node, index))
            text.append((letter if whole else letter.lower()) + " ", style=colour)
    return text


def _units(node: Node, index: int) -> list[int]:
    device = node.devices[index]
    return [
        device.units if task.shape.gpus else task.shape.units(device.memory_mib) for task in node.tasks if index in task.devices
    ]


def _condition(node: Node) -> Text:
    style = {"heard": "green", "silent": "yellow", "lost": "bold red"}[node.liveness]
    return Text({"heard": "ready"}.get(node.liveness, node.liveness), style=style)


def _jobs(state: State) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("job", "priority", "state", "attempts"):
        table.add_column(column, justify="right" if column in ("priority", "attempts") else "left")
    for job in sorted(state.jobs.values(), key=lambda job: job.place):
        letter, colour = LETTERS[job.name]
        attempts = sum(instance.attempts for instance in job.instances)
        table.add_row(Text(f"{letter} {job.name}", style=colour), str(job.priority), _phases(job), str(attempts))
    return table


def _phases(job: Job) -> Text:
    counts = Counter(instance.phase for instance in job.instances)
    if len(job.instances) == 1:
        return Text(job.instances[0].phase)
    return Text(", ".join(f"{counts[phase]} {phase}" for phase in PHASES if counts[phase]))
