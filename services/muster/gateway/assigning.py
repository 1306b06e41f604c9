"""The assignment of a node as its agent needs it: each task with what is needed to run it."""

from collections.abc import Callable

from muster.agent.protocol import ADDRESS_LABEL, AgentAssignment, AgentTask, Master, Ranks, Wanted
from muster.cluster.assignment import assignment
from muster.cluster.jobs import Attempt
from muster.cluster.nodes import Node
from muster.cluster.state import State


class Assigner:
    """Makes assignments; remembers where the members of an attempt are until it changes."""

    def __init__(self, secret: Callable[[str, int, int], str] | None = None) -> None:
        """`secret`: makes the secret of an attempt of an instance of a job."""
        self._secret = secret
        self._ranks: dict[tuple[str, int], Ranks] = {}

    def forget(self, touched: dict[tuple[str, int], None]) -> None:
        """The attempts of these instances changed."""
        for key in touched:
            self._ranks.pop(key, None)

    def assign(self, state: State, row: int, now_us: int, wanted: tuple[Wanted, ...] = ()) -> AgentAssignment:
        """All that the node in this row is to hold, as of the state's cycle."""
        node = state.ledger.node(row)
        level = assignment(state, row)
        places: dict[tuple[str, int], int] = {}
        tasks: list[AgentTask] = []
        held = sorted(node.tasks, key=lambda task: (task.attempt.instance.place, task.rank))  # as `assignment` has them
        for item, task in zip(level.tasks, held, strict=True):
            attempt = task.attempt
            instance = attempt.instance
            key = instance.key
            job = instance.job
            local = places[key] = places.get(key, -1) + 1
            tasks.append(
                AgentTask(
                    job=job.id,
                    name=job.name,
                    user=job.user,
                    queue=job.queue,
                    instance=instance.index,
                    attempt=attempt.number,
                    rank=task.rank,
                    phase=item.phase,
                    kill_at_us=item.kill_at_us,
                    since=item.since,
                    devices=task.devices,
                    device_uuids=tuple([node.devices[index].uuid for index in task.devices]),
                    group=job.request.groups[task.group].name,
                    group_rank=task.rank - sum([group.count for group in job.request.groups[: task.group]]),
                    local_rank=local,
                    ranks=self._of(attempt),
                    master=_master(attempt),
                    run=job.run,
                    request=job.request,
                    retries=instance.retries,
                    secret=self._secret(job.id, instance.index, attempt.number) if self._secret is not None else "",
                )
            )
        return AgentAssignment(
            cell=state.cell,
            uid=node.uid,
            boot=node.boot,
            number=state.number,
            at_us=state.at_us,
            now_us=now_us,
            tasks=tuple(tasks),
            wanted=wanted,
        )

    def _of(self, attempt: Attempt) -> Ranks:
        key = attempt.instance.key
        found = self._ranks.get(key)
        if found is None:
            counts: dict[str, int] = {}
            for _, task in sorted(attempt.tasks.items()):
                counts[task.node.name] = counts.get(task.node.name, 0) + 1
            found = Ranks(world_size=len(attempt.tasks), nodes=tuple(counts), ranks_per_node=tuple(counts.values()))
            self._ranks[key] = found
        return found


def address(node: Node) -> str:
    """Where other nodes reach it."""
    return node.spec.labels.get(ADDRESS_LABEL) or node.name


def _master(attempt: Attempt) -> Master | None:
    """Where the members meet, once they were started."""
    if not attempt.started_us or not attempt.tasks:
        return None
    first = attempt.tasks[min(attempt.tasks)]
    return Master(addr=address(first.node), port=first.port)
