"""`muster job ID`: one job, with its instances and where they are."""

import shlex
from typing import Annotated

import typer

from muster.cli.gateway_client import Where
from muster.cli.output import Cell, Json, instant, print_json, print_table
from muster.cli.source import At, Log, open_source
from muster.gateway.shown import InstanceShown, JobShown

app = typer.Typer(add_completion=False)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Its id, the beginning of it, or its name.", show_default=False)]
COLUMNS = ("INSTANCE", "STATE", "ATTEMPT", "RANK", "TASK", "NODE", "DEVICES", "CODE", "REASON")


@app.command()
def job(job: JobName, at: At = 0, log: Log = None, json: Json = False, gateway: Where = "", cell: Cell = None) -> None:
    """Show a job: what it asks for, what it runs, and where its tasks are.

    Exit status: 0; 2 no such job or cycle; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster job train

    muster job 019a --at 1200 --json
    """
    with open_source(gateway, log, at, cell) as source:
        shown = source.job(source.find(job, at), at)
    if json:
        print_json(shown)
    else:
        _print(shown)


def _print(shown: JobShown) -> None:
    row = shown.job
    print(f"{row.name} ({row.job}) is {row.state}" + (f": {row.reason}" if row.reason else ""))
    times = [f"submitted {instant(row.submitted_us)}"]
    times += [f"started {instant(row.started_us)}"] if row.started_us else []
    times += [f"ended {instant(row.ended_us)}"] if row.ended_us else []
    print(f"user {row.user}, queue {row.queue}, priority {row.priority}, {', '.join(times)}")
    if shown.service is not None:
        print(f"service, revision {shown.service.revision}: {shown.service.said or 'cancelled'}")
    for group in shown.request.groups:
        amounts = (
            (group.gpus, f"{group.gpus} slices {group.gpu_profile}" if group.gpu_profile else f"{group.gpus} GPUs"),
            (group.gpu_milli, f"{group.gpu_milli} thousandths of a GPU"),
            (group.gpu_memory_mib, f"{group.gpu_memory_mib} MiB of GPU memory"),
            (group.cpu_milli, f"{group.cpu_milli} milli-CPU"),
            (group.memory_mib, f"{group.memory_mib} MiB"),
            (group.disk_mib, f"{group.disk_mib} MiB of disk"),
        )
        least = f", at least {group.min}" if group.min != group.count else ""
        asked = ", ".join([text for amount, text in amounts if amount])
        print(f"group {group.name}: {group.count} tasks{least}; each {asked or 'nothing'}")
    if shown.run.image:
        print(f"image {shown.run.image}")
    if shown.run.command:
        print(f"command {_command(shown.run.command)}")
    for element in shown.elements:
        if element.deadline:
            print(f"{f'instance {element.instance}: ' if len(shown.elements) > 1 else ''}{element.deadline}")
    rows: list[tuple[object, ...]] = []
    for element in shown.elements:
        rows.extend(_rows(element))
    print_table(COLUMNS, rows)


def _rows(element: InstanceShown) -> list[tuple[object, ...]]:
    head = (element.instance, element.state, element.attempts)
    attempt = element.attempt
    if attempt is None:
        return [(*head, "", "", "", "", element.code or "", element.reason)]
    return [
        (*head, task.rank, task.state, task.node, ",".join(map(str, task.devices)), task.code or "", attempt.stop_reason)
        for task in attempt.tasks
    ]


def _command(words: tuple[str, ...]) -> str:
    text = shlex.join(words)
    line = text.replace("\n", "\\n")
    return line if len(line) <= 200 else line[:197] + "..."
