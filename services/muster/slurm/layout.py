"""Which tasks of a step go to which part of the job. Pure: everything is an argument.

A job has parts: what it was given on one node each. Tasks are numbered part by part (Slurm's block distribution), as evenly
as they go, and no part has more than `--ntasks-per-node`.
"""

from collections.abc import Sequence

import msgspec

from muster.slurm.say import Refused

TASKS_MAX = 65_536


class Part(msgspec.Struct, frozen=True):
    """What the job has on one node. `rank` is its place in the job; 0 is where the script runs."""

    rank: int
    node: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the step asks for; None where it does not say."""

    tasks: int | None = None
    nodes: int | None = None
    per_node: int | None = None
    names: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    relative: int = 0


class Usual(msgspec.Struct, frozen=True, kw_only=True):
    """What the job says, for what the step does not."""

    tasks: int | None = None
    per_node: int | None = None


def lay_out(parts: Sequence[Part], asked: Asked, usual: Usual) -> list[tuple[Part, int]]:
    """The parts of the step with the number of tasks on each, at least one.

    Raises:
        Refused: the job has not so many nodes, or not these.
    """
    chosen = _chosen(parts, asked)
    whole = len(chosen) == len(parts)
    per_node = asked.per_node or usual.per_node
    tasks = asked.tasks
    if tasks is None and whole and asked.per_node is None:
        tasks = usual.tasks
    if tasks is None:
        tasks = len(chosen) * (per_node or 1)
    if tasks > TASKS_MAX:
        raise Refused(f"a step has at most {TASKS_MAX} tasks, not {tasks}")
    if tasks < len(chosen):
        chosen = chosen[:tasks]
    if asked.per_node is not None and tasks > asked.per_node * len(chosen):
        raise Refused(f"{tasks} tasks with {asked.per_node} on each node do not fit on {len(chosen)} nodes")
    each, more = divmod(tasks, len(chosen))
    return [(part, each + (index < more)) for index, part in enumerate(chosen)]


def _chosen(parts: Sequence[Part], asked: Asked) -> list[Part]:
    there = ", ".join(dict.fromkeys(part.node for part in parts))
    unknown = [name for name in asked.names if all(part.node != name for part in parts)]
    if unknown:
        raise Refused(f"the job is not on {unknown[0]}; it is on {there}")
    left = [part for part in parts[asked.relative :] if part.node not in asked.without]
    named = [part for part in left if part.node in asked.names]
    if asked.nodes is None:
        chosen = named if asked.names else left
    else:
        others = [part for part in left if part.node not in asked.names]
        chosen = sorted((named + others)[: asked.nodes], key=lambda part: part.rank)
        if len(chosen) < asked.nodes:
            raise Refused(f"the step asks for {asked.nodes} nodes, and the job has {len(left)} for it: {there}")
    if not chosen:
        raise Refused(f"no node is left for the step; the job is on {there}")
    return chosen
