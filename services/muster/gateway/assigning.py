"""The assignment of a node as its agent needs it: each task with what is needed to run it."""

from collections.abc import Callable

import msgspec

from muster.agent.protocol import ADDRESS_LABEL, AgentTask, Master, Ranks, Wanted
from muster.cluster.assignment import assigned
from muster.cluster.jobs import Attempt, Task
from muster.cluster.nodes import Node
from muster.cluster.state import State


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    """An `AgentAssignment` whose tasks are JSON already."""

    cell: str
    uid: str
    boot: str
    number: int
    at_us: int
    now_us: int
    tasks: list[msgspec.Raw | None]
    """Each is there."""
    wanted: tuple[Wanted, ...]


class Known:
    """What does not change about an attempt until it is touched."""

    __slots__ = ("ranks", "secret", "tasks")

    def __init__(self, ranks: Ranks, secret: str) -> None:
        self.ranks = ranks
        self.secret = secret
        self.tasks: dict[int, msgspec.Raw] = {}
        """What its nodes are told of each member, by rank."""


class Assigner:
    """Makes assignments; remembers what is told of the members of an attempt until it changes."""

    def __init__(self, secret: Callable[[str, int, int], str] | None = None) -> None:
        """`secret`: makes the secret of an attempt of an instance of a job."""
        self._secret = secret
        self._known: dict[tuple[str, int], Known] = {}

    def forget(self, touched: dict[tuple[str, int], None]) -> None:
        """The attempts of these instances changed."""
        for key in touched:
            self._known.pop(key, None)

    def assign(self, state: State, row: int, now_us: int, wanted: tuple[Wanted, ...] = ()) -> bytes:
        """All that the node in this row is to hold, as of the state's cycle: an `AgentAssignment` as JSON."""
        node = state.ledger.node(row)
        held = sorted([task for task in node.tasks if not task.attempt.instance.job.headroom], key=_order)
        told = [self._of(task.attempt).tasks.get(task.rank) for task in held]
        if None in told:
            told = self._tell(node, held)
        return msgspec.json.encode(
            Assigned(
                cell=state.cell,
                uid=node.uid,
                boot=node.boot,
                number=state.number,
                at_us=state.at_us,
                now_us=now_us,
                tasks=told,
                wanted=wanted,
            )
        )

    def _tell(self, node: Node, held: list[Task]) -> list[msgspec.Raw | None]:
        """What is told of the tasks that the node holds; made where it is not known yet."""
        places: dict[tuple[str, int], int] = {}
        told: list[msgspec.Raw | None] = []
        for task in held:
            attempt = task.attempt
            key = attempt.instance.key
            places[key] = local = places.get(key, -1) + 1
            known = self._of(attempt)
            found = known.tasks.get(task.rank)
            if found is None:
                found = known.tasks[task.rank] = msgspec.Raw(msgspec.json.encode(_told(node, task, local, known)))
            told.append(found)
        return told

    def _of(self, attempt: Attempt) -> Known:
        instance = attempt.instance
        found = self._known.get(instance.key)
        if found is None:
            counts: dict[str, int] = {}
            members = [task for _, task in sorted(attempt.tasks.items()) if not task.going]
            for task in members:
                counts[task.node.name] = counts.get(task.node.name, 0) + 1
            ranks = Ranks(
                world_size=len(members),
                nodes=tuple(counts),
                ranks_per_node=tuple(counts.values()),
                changed=attempt.changed,
                ranks=tuple([task.rank for task in members]) if attempt.changed else (),
            )
            secret = self._secret(instance.job.id, instance.index, attempt.number) if self._secret is not None else ""
            found = self._known[instance.key] = Known(ranks, secret)
        return found


def _told(node: Node, task: Task, local_rank: int, known: Known) -> AgentTask:
    attempt = task.attempt
    instance = attempt.instance
    job = instance.job
    group = job.request.groups[task.group].name
    item = assigned(task)
    return AgentTask(
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
        group=group,
        group_rank=task.rank - sum([group.count for group in job.request.groups[: task.group]]),
        local_rank=local_rank,
        ranks=known.ranks,
        master=_master(attempt),
        run=job.run.of(group),
        request=job.request,
        retries=instance.retries,
        secret=known.secret,
    )


def _order(task: Task) -> tuple[object, int]:
    """As `muster.cluster.assignment` has them."""
    return task.attempt.instance.place, task.rank


def address(node: Node) -> str:
    """Where other nodes reach it."""
    return node.spec.labels.get(ADDRESS_LABEL) or node.name


def _master(attempt: Attempt) -> Master | None:
    """Where the members meet, once they were started."""
    if not attempt.started_us or not attempt.tasks:
        return None
    first = attempt.tasks[min(attempt.tasks)]
    return Master(addr=address(first.node), port=first.port)
