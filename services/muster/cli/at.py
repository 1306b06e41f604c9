"""`muster at [LOG] CYCLE jobs|nodes|job ID`: the cluster as it was once a cycle was admitted."""

from collections import Counter
from typing import Annotated, Any

import typer

from muster.cli.find import find_job, find_state
from muster.cli.gateway_client import Where
from muster.cli.job import job as show_job
from muster.cli.jobs import jobs as show_jobs
from muster.cli.nodes import nodes as show_nodes
from muster.cli.output import Cell, Failure, Json, instant, print_json, print_table
from muster.cluster.jobs import Attempt, Instance, Job
from muster.cluster.nodes import Node

app = typer.Typer(add_completion=False)


WHAT = ("jobs", "nodes", "job")


@app.command()
def at(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOG] CYCLE jobs|nodes|job [ID]",
            help="Number of the cycle (0 is the newest), what to show, and with job: its id, the beginning of it, or its name.",
            show_default=False,
        ),
    ],
    json: Json = False,
    gateway: Where = "",
    cell: Cell = None,
) -> None:
    """Show the state as it was after a cycle.

    Exit status: 0; 2 no such cycle or job; 3 the log cannot be read; 4 no gateway answers; 5 not allowed.

    Examples: muster at 120 jobs

    muster at LOG 120 nodes

    muster at LOG 0 job train-a --json
    """
    asks = words[0].isdigit() and (len(words) < 2 or not words[1].isdigit())
    cycle, what, job = _read(words if asks else words[1:])
    if not asks:
        _show_log(words[0], cycle, what, job, json, cell)
    elif what == "jobs":
        show_jobs(at=cycle, json=json, gateway=gateway)
    elif what == "nodes":
        show_nodes(at=cycle, json=json, gateway=gateway)
    else:
        show_job(job, at=cycle, json=json, gateway=gateway)


def _read(words: list[str]) -> tuple[int, str, str]:
    """The cycle, what to show, and the job."""
    if len(words) < 2 or not words[0].isdigit() or len(words[0]) > 16:
        given = repr(words[0]) if words else "nothing"
        raise Failure(
            f"CYCLE and what to show are needed, as in `muster at LOG 120 jobs`; {given} stands where a cycle's number should"
        )
    if words[1] not in WHAT:
        raise Failure(f"{words[1]!r} cannot be shown: {', '.join(WHAT)} can")
    if (words[1] == "job") != (len(words) == 3):
        raise Failure(
            "`job` needs the id or the name of one"
            if len(words) == 2
            else f"{words[1]!r} takes no further argument, and {words[2]!r} was given"
        )
    return int(words[0]), words[1], words[2] if len(words) > 2 else ""


def _show_log(log: str, cycle: int, what: str, job: str, json: bool, cell: str | None) -> None:
    state = find_state(log, cycle, cell)
    if what == "jobs":
        rows = [job_row(found) for found in sorted(state.jobs.values(), key=lambda found: found.place)]
    elif what == "nodes":
        rows = [node_row(node) for node in state.nodes if node is not None]
    else:
        _show_job(find_job(state, job), json)
        return
    if json:
        print_json(rows)
        return
    print(f"cell {state.cell} after cycle {state.number} of term {state.term}, at {instant(state.at_us)}")
    print_table([column.upper() for column in rows[0]] if rows else [], [list(map(_text, row.values())) for row in rows])


def job_row(job: Job) -> dict[str, Any]:
    """What a list shows of a job."""
    return {
        "job": job.id,
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "priority": job.priority,
        "instances": dict(sorted(Counter(instance.phase for instance in job.instances).items())),
        "attempts": sum(instance.attempts for instance in job.instances),
        "nodes": sorted({task.node.name for instance in job.instances for task in _held(instance)}),
    }


def node_row(node: Node) -> dict[str, Any]:
    """What a list shows of a node. Shares of a device are in thousandths of it."""
    marks = [name for name, on in (("cordoned", node.cordoned), ("drained", node.drained), ("fenced", node.fenced)) if on]
    if node.quarantined_until_us:
        marks.append("quarantined")
    used = [0] * len(node.devices)
    for task in node.tasks:
        for index in task.devices:
            device = node.devices[index]
            used[index] += 1000 if task.shape.gpus else task.shape.units(device.memory_mib) * 1000 // device.units
    return {
        "row": node.row,
        "node": node.name,
        "state": " ".join([node.liveness, *marks]),
        "cpu_free": node.cpu_free,
        "memory_free": node.memory_free,
        "tasks": len(node.tasks),
        "gpus_milli": used,
        "unhealthy": [index for index, device in enumerate(node.devices) if device.present and device.health != "healthy"],
    }


def _show_job(job: Job, json: bool) -> None:
    facts = {
        **job_row(job),
        "submitted_us": job.submitted_us,
        "request": job.request,
        "rejected": job.rejected,
        "elements": [_instance(instance) for instance in job.instances],
    }
    if json:
        print_json(facts)
        return
    print(
        f"{job.name} ({job.id}) user={job.user} queue={job.queue} priority={job.priority} submitted={instant(job.submitted_us)}"
    )
    if job.rejected:
        print(f"rejected: {job.rejected}")
    for group in job.request.groups:
        each = f"{group.gpus} GPUs, {group.gpu_milli} milli-GPU, {group.cpu_milli} milli-CPU, {group.memory_mib} MiB"
        print(f"group {group.name}: {group.count} tasks, at least {group.min}; each {each}")
    rows: list[tuple[object, ...]] = []
    for instance in job.instances:
        head = (instance.index, instance.phase, instance.attempts)
        if instance.attempt is None:
            rows.append((*head, "", "", "", "", instance.reason))
        else:
            for task in instance.attempt.tasks.values():
                rows.append(
                    (*head, task.rank, task.phase, task.node.name, _text(list(task.devices)), instance.attempt.stop_reason)
                )
    print_table(("INSTANCE", "STATE", "ATTEMPT", "RANK", "TASK", "NODE", "DEVICES", "REASON"), rows)


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        "instance": instance.index,
        "state": instance.phase,
        "attempts": instance.attempts,
        "reason": instance.reason,
        "attempt": _attempt(instance.attempt) if instance.attempt else None,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    tasks = [
        {"rank": task.rank, "state": task.phase, "node": task.node.name, "devices": list(task.devices), "holding": task.holding}
        for task in attempt.tasks.values()
    ]
    return {
        "attempt": attempt.number,
        "phase": attempt.phase,
        "bound_us": attempt.bound_us,
        "started_us": attempt.started_us,
        "stop_reason": attempt.stop_reason,
        "tasks": tasks,
    }


def _held(instance: Instance) -> list[Any]:
    return [task for task in instance.attempt.tasks.values() if task.holding] if instance.attempt else []


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
