"""What is said about jobs from outside: submissions, cancellations, changes of priority.

`JobRequest` is all that decisions read. `JobRun` is what an agent needs to run the tasks; the engine never looks
into it.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, structs

from muster.events.base import (
    GROUPS_MAX,
    MODELS_MAX,
    Event,
    InstanceIndex,
    JobKey,
    Label,
    LabelKey,
    Labels,
    Micros,
    Name,
    Part,
    Priority,
    Profile,
    Quantity,
    TaskCount,
    TaskMinimum,
    Text,
)
from muster.events.catalogue import Bandwidth, Capability
from muster.events.services import Revision, Service

Port = Annotated[int, Meta(ge=1, le=65_535)]


class Requirement(Part, frozen=True, kw_only=True):
    """One condition on a node's labels: `key op values`."""

    key: LabelKey
    op: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    values: Annotated[tuple[Label, ...], Meta(max_length=64)] = ()


Selector = Annotated[tuple[Requirement, ...], Meta(min_length=1, max_length=32)]
"""Conditions that all hold."""


class Preference(Part, frozen=True, kw_only=True):
    """A wish about a node's labels. A node that meets all of `labels` has so much more weight."""

    labels: Annotated[tuple[Requirement, ...], Meta(min_length=1, max_length=32)]
    weight: Annotated[int, Meta(ge=1, le=100)] = 1


class Toleration(Part, frozen=True, kw_only=True):
    """A taint that the tasks put up with. An empty `key` means every key, an empty `effect` every effect.

    `value` is compared only where `any_value` is false.
    """

    key: Annotated[str, Meta(max_length=128)] = ""
    value: Label = ""
    any_value: bool = False
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    seconds: Annotated[int, Meta(ge=0, le=10**9)] | UnsetType = UNSET
    """For so long a taint `NoExecute` is put up with, from when both the taint and the task are there; unset means for ever."""


Level = Literal["zone", "block", "rack", "nvlink_domain", "node"]
"""The levels of the topology. A domain is one value of a level, as the nodes name it; its names are unique in a cell."""


class Within(Part, frozen=True, kw_only=True):
    """All tasks of an instance stand in one domain of this level; where it is only preferred, in as few as can be."""

    level: Level
    required: bool = True


class Spread(Part, frozen=True, kw_only=True):
    """The tasks of an instance stand apart. At least one of `most` and `skew` is set; 0 means that it bounds nothing."""

    level: Level
    most: TaskMinimum = 0
    """So many tasks in one domain at most."""
    skew: TaskMinimum = 0
    """So many more than in the emptiest domain that could take one, at most."""


class JobTerm(Part, frozen=True, kw_only=True):
    """The tasks of the jobs whose labels meet every requirement, and the level at which to be together or apart."""

    labels: Annotated[tuple[Requirement, ...], Meta(min_length=1, max_length=16)]
    by: Level = "node"
    required: bool = True


class Licences(Part, frozen=True, kw_only=True):
    """So many of a consumable of the whole cell, held from the binding of an attempt until its last task is gone."""

    name: Name
    count: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1


class Constraints(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What a job asks of its places beyond what each task needs. What is not asked is not written."""

    within: Annotated[tuple[Within, ...], Meta(max_length=5)] = ()
    spread: Annotated[tuple[Spread, ...], Meta(max_length=5)] = ()
    affinity: Annotated[tuple[JobTerm, ...], Meta(max_length=8)] = ()
    """Each task stands in a domain in which a task of such a job is held."""
    anti_affinity: Annotated[tuple[JobTerm, ...], Meta(max_length=8)] = ()
    """Each task stands in a domain in which no task of such a job is held; and such a job is kept away from it."""
    exclusive: bool = False
    """Nothing of another job shares a node with it."""
    licences: Annotated[tuple[Licences, ...], Meta(max_length=16)] = ()


class GroupRequest(Part, frozen=True, kw_only=True):
    """Tasks of one shape. All amounts are for one task.

    A task asks for whole devices (`gpus`), or for a share of one in thousandths (`gpu_milli`), or for so much memory of
    one (`gpu_memory_mib` alone), or for none. With `gpus` or `gpu_milli`, `gpu_memory_mib` is the least memory that the
    device must have in all.
    """

    name: Name = "task"
    count: TaskCount = 1
    min: TaskMinimum = 1
    cpu_milli: Quantity = 0
    memory_mib: Quantity = 0
    disk_mib: Quantity = 0
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0
    gpu_milli: Annotated[int, Meta(ge=0, le=999)] = 0
    gpu_memory_mib: Quantity = 0
    gpu_models: Annotated[tuple[Label, ...], Meta(max_length=MODELS_MAX)] = ()
    """In order of preference; empty means any."""
    selector: Annotated[tuple[Requirement, ...], Meta(max_length=32)] = ()
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=32)] = ()
    numa: Literal["required", "preferred"] | UnsetType = UNSET
    """Whether the devices, the CPU and the memory of a task are of one NUMA node."""
    ports: Annotated[tuple[Port, ...], Meta(max_length=16)] | UnsetType = UNSET
    """Ports of its node that a task takes for itself."""
    image: Annotated[str, Meta(max_length=512)] | UnsetType = UNSET
    """The image for which the score `image-locality` looks."""
    datasets: Annotated[tuple[Label, ...], Meta(max_length=16)] | UnsetType = UNSET
    """The data sets for which the score `data-locality` looks."""
    any_of: Annotated[tuple[Selector, ...], Meta(max_length=16)] | UnsetType = UNSET
    """Selectors of which a node meets one at least, beside `selector`."""
    prefers: Annotated[tuple[Preference, ...], Meta(max_length=16)] | UnsetType = UNSET
    """Of the nodes that would do, those of the most weight are taken first."""
    gpu_capability: Capability | UnsetType = UNSET
    """The least compute capability of its devices. The cell's catalogue says which models have it when the job is submitted."""
    gpu_bandwidth: Bandwidth | UnsetType = UNSET
    """The least memory bandwidth of its devices, likewise."""
    gpu_profile: Profile | UnsetType = UNSET
    """The profile of the slices (MIG) of which it takes `gpus`; unset takes whole GPUs and never a slice."""


class Dependency(Part, frozen=True, kw_only=True):
    """Another job, and what must have come of it before this one may be placed.

    `started`: every instance of it started once, or ended; `ended`: it is over; `finished`: it is over and all of it
    finished; `failed`: it is over and something of it did not finish.
    """

    job: JobKey
    when: Literal["started", "ended", "finished", "failed"] = "finished"


class JobRequest(Part, frozen=True, kw_only=True):
    """All that decisions read of a job."""

    groups: Annotated[tuple[GroupRequest, ...], Meta(min_length=1, max_length=GROUPS_MAX)]
    priority: Priority = 0
    preemptible: bool = True
    kind: Literal["best-effort", "headroom"] | UnsetType = UNSET
    """Unset is a batch job. `best-effort`: it takes what nobody else wants, is charged to no guarantee and no limit, and is told
    to stop for any other job before anybody else is. `headroom`: it runs nothing and holds places for jobs of its queue that are
    not below it in priority, which have them at once."""
    budget: TaskMinimum | UnsetType = UNSET
    """So many of its tasks may be disrupted at once, where that can be avoided; unset means any number."""
    deadline_us: Micros | UnsetType = UNSET
    """It should have finished by then. Among jobs of equal standing the earlier one is placed first, who has none last."""
    array: TaskCount | None = None
    """How many elements; None means one instance. Elements are numbered from 0."""
    at_once: TaskCount | UnsetType = UNSET
    """With `array`: so many of its elements run, start or wait to be placed at once; the others come after them, in order."""
    after: Annotated[tuple[Dependency, ...], Meta(max_length=64)] | UnsetType = UNSET
    """All of these must hold before anything of it is placed. What can never hold rejects it."""
    max_retries: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Attempts that failed by the job's own fault and are tried again; losses of nodes and devices are not counted."""
    time_limit_us: Micros | None = None
    """From the start of an attempt."""
    grace_us: Micros = 0
    """From the notice to the kill."""
    degraded_grace_us: Micros = 0
    """How long a gang that lost a member may run below its minimum."""
    success: Annotated[str, Meta(max_length=63)] = ""
    """Name of the group whose tasks decide the outcome; empty means all."""
    labels: Labels = {}
    constraints: Constraints | UnsetType = UNSET
    service: Service | UnsetType = UNSET
    """With it the job is a service: each replica is an instance, and what is said here is said of each."""
    elastic: bool | UnsetType = UNSET
    """Whether its instances, once they run, grow up to `count` into what is idle, and give up members above `min` before anybody
    is told to stop."""
    checkpoint_every_us: Micros | UnsetType = UNSET
    """How often it says that it saved its work; no decision reads it."""


Command = Annotated[tuple[Annotated[str, Meta(max_length=131_072)], ...], Meta(max_length=4096)]
Environment = Annotated[
    dict[Annotated[str, Meta(max_length=256)], Annotated[str, Meta(max_length=65_536)]], Meta(max_length=4096)
]


class GroupRun(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What the tasks of one group run instead. What is empty is as in the job; variables are added to the job's."""

    command: Command = ()
    image: Annotated[str, Meta(max_length=512)] = ""
    environment: Environment = {}
    directory: Annotated[str, Meta(max_length=4096)] = ""


class JobRun(Part, frozen=True, kw_only=True):
    """What an agent needs to run the tasks. No decision reads it."""

    command: Command = ()
    image: Annotated[str, Meta(max_length=512)] = ""
    environment: Environment = {}
    directory: Annotated[str, Meta(max_length=4096)] = ""
    output: Annotated[str, Meta(max_length=4096)] = ""
    error: Annotated[str, Meta(max_length=4096)] = ""
    groups: Annotated[dict[Annotated[str, Meta(max_length=63)], GroupRun], Meta(max_length=GROUPS_MAX)] | UnsetType = UNSET
    """By the name of a group of the request, what its tasks run where it is not what the others run."""

    def of(self, group: str) -> "JobRun":
        """What the tasks of this group run."""
        own = self.groups.get(group) if self.groups else None
        if own is None:
            return self if self.groups is UNSET else structs.replace(self, groups=UNSET)
        return structs.replace(
            self,
            command=own.command or self.command,
            image=own.image or self.image,
            environment=self.environment | own.environment,
            directory=own.directory or self.directory,
            groups=UNSET,
        )


class JobSubmitted(Event, frozen=True, kw_only=True):
    """Somebody wants this to run."""

    job: JobKey
    name: Name
    user: Name
    queue: Name = "default"
    submitted_us: Micros = 0
    """When its producer made it, by the producer's clock."""
    request: JobRequest
    run: JobRun = JobRun()


class JobCancelRequested(Event, frozen=True, kw_only=True):
    """Somebody wants the job, or one instance of it, to end."""

    job: JobKey
    instance: InstanceIndex | None = None
    by: Text = ""


class JobReprioritised(Event, frozen=True, kw_only=True):
    """The job's priority is now this one."""

    job: JobKey
    priority: Priority
    by: Text = ""


class JobRevised(Event, frozen=True, kw_only=True):
    """A service is to be like this from now on: its replicas are replaced one after the other.

    `request.priority` and `request.service.replicas` change something only where they differ from those of the revision before.
    """

    job: JobKey
    request: JobRequest
    run: JobRun = JobRun()
    follows: Revision = 0
    """The revision that it is to follow: where that is not the newest any more, nothing changes. 0: whichever is."""
    by: Text = ""


class JobResizeRequested(Event, frozen=True, kw_only=True):
    """Each instance of the job is to have so many tasks; of a job with one group.

    Before it runs that is so for any job. An elastic one that runs gives up what is beyond it, and grows up to it.
    """

    job: JobKey
    count: TaskCount
    by: Text = ""


class JobCheckpointed(Event, frozen=True, kw_only=True):
    """The job, or one instance of it, saved its work: that much is not lost if it is told to stop."""

    job: JobKey
    instance: InstanceIndex | None = None
    by: Text = ""
