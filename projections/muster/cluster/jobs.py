"""Jobs, their instances, and the attempts of these.

Phases of an instance: pending, starting, running, stopping; and for good finished, failed, cancelled, rejected. Phases of
an attempt: prepare, run, stop. Which event leads from one to the next stands in `muster.events.decisions`.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from muster.cluster.nodes import Node
from muster.cluster.shapes import Gang, Shape
from muster.events.codec import encode
from muster.events.jobs import Dependency, JobRequest, JobRun

if TYPE_CHECKING:
    from muster.cluster.queues import PendingClass
    from muster.cluster.services import Service

BEHIND: Final = 2**40
"""So far below its priority a best-effort job ranks: below the lowest that another may have."""

NO_TURN: Final = 2**62
"""Of most jobs; one more for headroom, which comes after all that stand as it does."""

TERMINAL: Final = frozenset(("finished", "failed", "cancelled", "rejected"))

Place = tuple[int, int, int]
"""Cycle number and index in the cycle of the submission, and number of the instance: unique, so that order is total."""


class Running(msgspec.Struct, eq=False):
    """The attempts of one queue and one priority that may be victims."""

    count: int = 0


class Kept(msgspec.Struct, eq=False):
    """What the state is made of. As structures of msgspec these are made in a fifth of the time that an `__init__` takes."""

    __repr__ = object.__repr__  # each leads to all the others


class Task(Kept):
    """One member of an attempt, on one node."""

    attempt: "Attempt"
    rank: int
    group: int
    shape: Shape
    node: Node
    devices: tuple[int, ...]
    since: int
    """The cycle that placed it here: that of the attempt's binding, or later where it replaces a member."""
    phase: str = "preparing"
    """preparing, ready, running, exited, lost; leaving: told to go alone, to be replaced."""
    holding: bool = True
    code: int = 0
    port: int = 0
    going: bool = False
    """It was told to go for good, and its attempt goes on without it: it is a member until it exited."""
    kill_at_us: int = 0
    """Of one that is going."""
    by: tuple[tuple[str, int], ...] = ()
    """The instances that are nominated for what it gives up by itself."""

    @property
    def row(self) -> int:
        """The row of its node."""
        return self.node.row


class Fault(msgspec.Struct, frozen=True):
    """Why an attempt cannot go on: the first thing that went wrong with it."""

    reason: str
    """A `StopReason`."""
    code: int = 0
    node: str = ""
    """Name of the node that it happened on."""
    blame: str = ""
    """job, node, or empty where nobody knows."""
    lost: bool = False
    """A member was lost with its node or device, not by its own doing."""


class Attempt(Kept):
    """One binding of one instance."""

    instance: "Instance"
    number: int
    bound_us: int
    bound_cycle: int
    ready_until_us: int = 0
    running: Running | None = None
    """Where it is counted while it may be a victim."""
    phase: str = "prepare"
    started_us: int = 0
    kill_at_us: int = 0
    stop_reason: str = ""
    """A `StopReason`, or preempted."""
    stop_code: int = 0
    stop_node: str = ""
    by: tuple[tuple[str, int], ...] = ()
    """The instances that are nominated for what it gives up."""
    fault: Fault | None = None
    """What went wrong and is not decided yet."""
    degraded_until_us: int = 0
    evictions: dict[tuple[int, str, str], int] | None = None
    """Until when taints are put up with, where some are: by row, key and value of the taint."""
    tasks: dict[int, Task] = {}
    """By rank. A member that was replaced is the new one."""
    ready: int = 0
    """Tasks that wait for the start."""
    held: int = 0
    """Tasks that hold something."""
    going: int = 0
    """Tasks that are going."""
    changed: int = 0
    """How often it grew or shrank."""
    saved_us: int = 0
    """When it last said that it saved its work."""
    charge: dict[str, int] | None = None
    """What its queue is charged with for it (`muster.cluster.queuetree`); None where nothing is, or there is no tree."""

    @property
    def work_since_us(self) -> int:
        """Since when it has done work that is lost with it: since its start, or since it last saved what it did."""
        return max(self.started_us, self.saved_us)

    @property
    def running_since_us(self) -> int:
        """When it started, or when it was bound if it has not."""
        return self.started_us or self.bound_us


class Instance(Kept):
    """What is bound whole or not at all."""

    job: "Job"
    index: int
    key: tuple[str, int]
    """Job and number."""
    place: Place
    """Its place among equals, kept over requeues."""
    phase: str = "pending"
    attempt: Attempt | None = None
    attempts: int = 0
    """Bindings so far; also the number of the newest attempt."""
    retries: int = 0
    start_failures: int = 0
    not_before_us: int = 0
    cancelling: bool = False
    ended_us: int = 0
    reason: str = ""
    code: int = 0
    waits: "PendingClass | None" = None
    """The class of the pending queue in which it stands, if it does."""
    ran: bool = False
    """It was started at least once."""


class Job(Kept):
    """What was submitted, and what became of it. `job_of` makes one with its instances."""

    id: str
    name: str
    user: str
    queue: str
    request: JobRequest
    run: JobRun
    gang: Gang
    place: tuple[int, int]
    submitted_us: int
    priority: int
    open: int
    """Instances that have not ended."""
    instances: list[Instance] = []
    avoid: tuple[str, ...] = ()
    """Uids of nodes that failed to start it."""
    over_us: int = 0
    """When its last instance ended, later by what nobody led since; 0 before."""
    rejected: str = ""
    limit_us: int | None = None
    """For how long an attempt may run: what it asked for, else what its queue allowed when it was submitted; None: for ever."""
    held: tuple[Dependency, ...] = ()
    """What does not hold yet and must, before anything of it is placed (`muster.cluster.dependencies`)."""
    next: int = 0
    """The first instance that is not in play yet: with `at_once`, those from here on wait for earlier ones to end."""
    tag: str = ""
    """Its labels, as one text: equal for equal labels, empty for none."""
    tagged: bool = False
    """It has labels or rules: `muster.cluster.tags` counts its tasks."""
    spare: bool = False
    """It is best-effort: charged to nothing, asked after all others, and told to stop for any of them."""
    headroom: bool = False
    """It runs nothing: it holds places, and yields them at once to those of its queue that are not below it."""
    turn: int = NO_TURN
    """Among those who stand equal who is asked first: the lower, then who has the earlier place. Its deadline, if it has one."""
    budgeted: bool = False
    """It has a budget of disruption (`muster.cluster.disruption`)."""
    apart: str = ""
    """What tells it from others of its gang that wait: its labels and its kind, as one text."""
    revision: int = 0
    """Of a service: how often it became another."""
    service: "Service | None" = None
    """What a service is beyond a job; what a replica is still of shares it (`muster.cluster.services`)."""

    @property
    def soft(self) -> bool:
        """It is owed nothing: nobody is preempted for it."""
        return self.spare or self.headroom

    @property
    def rank(self) -> int:
        """Its priority; below every other job's for one that is best-effort."""
        return self.priority - BEHIND if self.spare else self.priority


def job_of(
    id: str, name: str, user: str, queue: str, request: JobRequest, run: JobRun, gang: Gang, place: tuple[int, int], at_us: int
) -> Job:
    """A job that was submitted at `at_us`, with its instances, all pending."""
    array = request.array
    job = Job(id, name, user, queue, request, run, gang, place, at_us, request.priority, array or 1)
    job.limit_us = request.time_limit_us
    mark(job)
    if array is None:
        job.instances = [Instance(job, 0, (id, 0), (*place, 0))]
        job.next = 1
        return job
    job.instances = [Instance(job, index, (id, index), (*place, index)) for index in range(array)]
    job.next = min(array, request.at_once or array)
    return job


def mark(job: Job) -> None:
    """Say what of a job is counted beside its amounts."""
    request = job.request
    labels = request.labels
    if labels:
        job.tag = encode(labels).decode()
        job.tagged = True
    elif job.gang.rules is not None:
        job.tagged = True
    job.budgeted = isinstance(request.budget, int)
    job.apart = job.tag
    if isinstance(request.deadline_us, int):
        job.turn = request.deadline_us
        job.apart = f"{job.tag}/{job.turn}"
    if request.kind:
        job.spare = request.kind == "best-effort"
        job.headroom = request.kind == "headroom"
        job.turn += job.headroom
        job.apart = f"{job.apart}/{request.kind}"
