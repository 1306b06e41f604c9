"""What an agent and a gateway say to each other over HTTP, as types.

The agent posts its whole level, a `muster.events.levels.NodeReport`, to `/v1/nodes/NAME/reports` and gets a `ReportAnswer`
(202). It asks for its assignment by a long poll of `/v1/nodes/NAME/assignment?after=N&uid=U` and gets an `AgentAssignment`
(200), or nothing new (204). Bytes of output that somebody wants to read it posts to `/v1/nodes/NAME/output/ID`. Everything
else is a `Problem` (application/problem+json):

- 404: the gateway does not know the node (yet): the next report says again what the node has.
- 409: another agent has this name and is heard: this one runs nothing, and asks again later.
- 410 (output): nobody waits for this output any more.

Nothing here speaks HTTP; `muster.agent.client` does, and the gateway.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from muster.events.base import DEVICES_MAX, AttemptNumber, DeviceIndex, InstanceIndex, JobKey, Micros, Name, Rank, Uid
from muster.events.jobs import JobRequest, JobRun

POLL_S: Final = 25
"""How long a gateway lets a long poll wait at most."""
CHUNK_BYTES: Final = 256 * 1024
"""The most bytes of output in one request."""

ADDRESS_LABEL: Final = "muster.address"
"""The label of a node under which its agent says where other nodes reach it."""

Number = Annotated[int, Meta(ge=0, le=2**53)]


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Where the members of an attempt are."""

    world_size: int
    nodes: tuple[Name, ...]
    """The nodes of the attempt, each once, by the lowest rank on it."""
    ranks_per_node: tuple[int, ...]
    """How many members each of these nodes has, in the same order."""
    changed: Annotated[int, Meta(ge=0)] = 0
    """How often an elastic attempt gained or lost members."""
    ranks: tuple[Rank, ...] = ()
    """Once it did: the ranks of its members; else they are all from 0 on."""


class Master(msgspec.Struct, frozen=True, kw_only=True):
    """Where the members meet: at rank 0's node, at the port that its agent chose."""

    addr: str
    port: int


class AgentTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task that the node is to hold: its phase, and all that is needed to run it."""

    job: JobKey
    name: Name
    user: Name
    queue: Name = "default"
    instance: InstanceIndex
    attempt: AttemptNumber
    rank: Rank
    phase: Literal["prepare", "run", "stop"]
    kill_at_us: Micros = 0
    """With `stop`: by log time."""
    since: Number = 0
    """The cycle that placed this member here; the same rank with a later one is another member. Said again in reports."""
    devices: Annotated[tuple[DeviceIndex, ...], Meta(max_length=DEVICES_MAX)] = ()
    """By the scheduler's numbering of the node's devices."""
    device_uuids: Annotated[tuple[Uid, ...], Meta(max_length=DEVICES_MAX)] = ()
    """The same devices by identity, in the same order: this is what the agent goes by."""
    group: Name = "task"
    group_rank: Rank = 0
    """The task's place among the tasks of its group."""
    local_rank: Rank = 0
    """The task's place among the tasks of its attempt on this node."""
    ranks: Ranks
    master: Master | None = None
    """Known once the attempt is started."""
    run: JobRun
    request: JobRequest
    retries: Annotated[int, Meta(ge=0)] = 0
    """How often the instance was tried before by the job's own fault."""
    secret: Annotated[str, Meta(max_length=128)] = ""
    """Of the attempt, the same for all its tasks; see `muster.agent.credentials`. It is kept nowhere and shown to nobody."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Output that somebody wants to read."""

    id: Uid
    job: JobKey
    instance: InstanceIndex = 0
    attempt: Annotated[int, Meta(ge=0)] = 0
    """0 means the newest that the node has."""
    rank: Rank = 0
    stream: Literal["stdout", "stderr"] = "stdout"
    offset: Number = 0
    follow: bool = False
    """Go on until the task has ended."""


class AgentAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """All that the node is to hold, as of cycle `number` of the log."""

    cell: str
    uid: Uid
    boot: Uid
    """The boot of the node that the log knows. An agent obeys only what is meant for its own boot: what was assigned
    before it started anew has ended."""
    number: Number
    at_us: Micros
    """Log time of the cycle."""
    now_us: Micros = 0
    """Log time when the answer was made; 0 means `at_us`. The agent counts from here: its own clock may be wrong."""
    tasks: tuple[AgentTask, ...] = ()
    wanted: tuple[Wanted, ...] = ()


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The report was taken."""

    lease_us: Micros
    """The node's tasks may run on for so long, counted from when the report was sent."""
    durable: bool = True
    """Only a durable report moves the lease."""
    known: bool = True
    """False asks for what the node has in the next report."""
    warning: str = ""
    """For whoever looks after the node: another agent claims its name."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not done (RFC 9457)."""

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    field: str | None = None
