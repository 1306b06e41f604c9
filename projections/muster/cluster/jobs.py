"""Jobs, their instances, and the attempts of these.

Phases of an instance: pending, starting, running, stopping; and for good finished, failed, cancelled, rejected. Phases of
an attempt: prepare, run, stop. Which event leads from one to the next stands in `muster.events.decisions`.
"""

from typing import Final

from muster.cluster.nodes import Node
from muster.cluster.shapes import Gang, Shape
from muster.events.jobs import JobRequest, JobRun

TERMINAL: Final = frozenset(("finished", "failed", "cancelled", "rejected"))

Place = tuple[int, int, int]
"""Cycle number and index in the cycle of the submission, and number of the instance: unique, so that order is total."""


class Task:
    """One member of an attempt, on one node."""

    __slots__ = ("attempt", "code", "devices", "group", "holding", "node", "phase", "port", "rank", "shape", "since")

    def __init__(self, attempt: "Attempt", rank: int, group: int, shape: Shape, node: "Node", devices: tuple[int, ...]) -> None:
        self.attempt = attempt
        self.rank = rank
        self.group = group
        self.shape = shape
        self.node = node
        self.devices = devices
        self.phase: str = "preparing"
        """preparing, ready, running, exited, lost; leaving: told to go alone, to be replaced."""
        self.holding = True
        self.code = 0
        self.port = 0
        self.since = attempt.bound_cycle
        """The cycle that placed it here: that of the attempt's binding, or later where it replaces a member."""

    @property
    def row(self) -> int:
        """The row of its node."""
        return self.node.row


class Fault:
    """Why an attempt cannot go on: the first thing that went wrong with it."""

    __slots__ = ("blame", "code", "lost", "node", "reason")

    def __init__(self, reason: str, code: int = 0, node: str = "", blame: str = "", lost: bool = False) -> None:
        self.reason = reason
        """A `StopReason`."""
        self.code = code
        self.node = node
        """Name of the node that it happened on."""
        self.blame = blame
        """job, node, or empty where nobody knows."""
        self.lost = lost
        """A member was lost with its node or device, not by its own doing."""


class Attempt:
    """One binding of one instance."""

    __slots__ = (
        "bound_cycle",
        "bound_us",
        "by",
        "degraded_until_us",
        "fault",
        "held",
        "instance",
        "kill_at_us",
        "number",
        "phase",
        "ready",
        "ready_until_us",
        "started_us",
        "stop_code",
        "stop_node",
        "stop_reason",
        "tasks",
    )

    def __init__(self, instance: "Instance", number: int, bound_us: int, bound_cycle: int) -> None:
        self.instance = instance
        self.number = number
        self.bound_us = bound_us
        self.bound_cycle = bound_cycle
        self.phase = "prepare"
        self.ready_until_us = 0
        self.started_us = 0
        self.kill_at_us = 0
        self.stop_reason = ""
        """A `StopReason`, or preempted."""
        self.stop_code = 0
        self.stop_node = ""
        self.by: tuple[tuple[str, int], ...] = ()
        """The instances that are nominated for what it gives up."""
        self.fault: Fault | None = None
        """What went wrong and is not decided yet."""
        self.degraded_until_us = 0
        self.tasks: dict[int, Task] = {}
        """By rank. A member that was replaced is the new one."""
        self.ready = 0
        """Tasks that wait for the start."""
        self.held = 0
        """Tasks that hold something."""

    @property
    def running_since_us(self) -> int:
        """When it started, or when it was bound if it has not."""
        return self.started_us or self.bound_us


class Instance:
    """What is bound whole or not at all."""

    __slots__ = (
        "attempt",
        "attempts",
        "cancelling",
        "code",
        "ended_us",
        "index",
        "job",
        "key",
        "not_before_us",
        "phase",
        "place",
        "reason",
        "retries",
        "start_failures",
        "timer",
        "waits",
    )

    def __init__(self, job: "Job", index: int) -> None:
        self.job = job
        self.index = index
        self.key: tuple[str, int] = (job.id, index)
        """Job and number."""
        self.timer: tuple[str, str, int] = ("attempt", job.id, index)
        """The key of the timer of its attempt."""
        self.place: Place = (*job.place, index)
        """Its place among equals, kept over requeues."""
        self.phase = "pending"
        self.attempt: Attempt | None = None
        self.attempts = 0
        """Bindings so far; also the number of the newest attempt."""
        self.retries = 0
        self.start_failures = 0
        self.not_before_us = 0
        self.cancelling = False
        self.ended_us = 0
        self.reason = ""
        self.code = 0
        self.waits: object | None = None
        """The class of the pending queue in which it stands, if it does."""


class Job:
    """What was submitted, and what became of it."""

    __slots__ = (
        "avoid",
        "gang",
        "id",
        "instances",
        "name",
        "open",
        "over_us",
        "place",
        "priority",
        "queue",
        "rejected",
        "request",
        "run",
        "submitted_us",
        "user",
    )

    def __init__(
        self,
        id: str,
        name: str,
        user: str,
        queue: str,
        request: JobRequest,
        run: JobRun,
        gang: Gang,
        place: tuple[int, int],
        submitted_us: int,
    ) -> None:
        self.id = id
        self.name = name
        self.user = user
        self.queue = queue
        self.request = request
        self.run = run
        self.gang = gang
        self.priority = request.priority
        self.place = place
        self.submitted_us = submitted_us
        array = request.array
        self.instances: list[Instance] = [Instance(self, 0)] if array is None else [Instance(self, at) for at in range(array)]
        self.open = len(self.instances)
        """Instances that have not ended."""
        self.avoid: tuple[str, ...] = ()
        """Uids of nodes that failed to start it."""
        self.over_us = 0
        """When its last instance ended, later by what nobody led since; 0 before."""
        self.rejected = ""
