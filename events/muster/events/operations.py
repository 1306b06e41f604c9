"""What operators say, and what steers decisions: cordon, drain, fence, leases, the policy."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from muster.events.base import Event, Label, Micros, Name, Part, Quantity, Text


class NodeCordoned(Event, frozen=True, kw_only=True):
    """No new work here."""

    node: Name
    by: Text = ""


class NodeUncordoned(Event, frozen=True, kw_only=True):
    """New work may come here again. Ends a drain and a quarantine too."""

    node: Name
    by: Text = ""


class NodeDrained(Event, frozen=True, kw_only=True):
    """No new work here, and what runs here is to leave with its grace and to run elsewhere."""

    node: Name
    by: Text = ""


class NodeFenced(Event, frozen=True, kw_only=True):
    """Somebody made sure that nothing runs on this node any more (power off, network cut)."""

    node: Name
    by: Text = ""


class LeaseExtended(Event, frozen=True, kw_only=True):
    """Until this instant no node is held to be lost: an outage of the bus is known."""

    until_us: Micros
    by: Text = ""


class Weight(Part, frozen=True, kw_only=True):
    """A score and how much it counts."""

    name: Label
    weight: Annotated[int, Meta(ge=-1000, le=1000)] = 1


class TargetClass(Part, frozen=True, kw_only=True):
    """One class of a target workload: tasks of this shape make up `weight` parts of it.

    As in a request: whole devices (`gpus`), or a share of one (`gpu_milli`), or none.
    """

    cpu_milli: Quantity = 0
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0
    gpu_milli: Annotated[int, Meta(ge=0, le=999)] = 0
    gpu_models: Annotated[tuple[Label, ...], Meta(max_length=16)] = ()
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class Backfill(Part, frozen=True, kw_only=True):
    """The highest jobs that do not fit get a planned start; who ranks below them may start only where that delays none."""

    reservations: Annotated[int, Meta(ge=1, le=1000)] = 1
    """How many of them: one is what is called EASY, as many as may wait is called conservative."""
    horizon_us: Micros = 604_800_000_000
    """Nothing is planned that would start later than this from now."""
    resolution_us: Annotated[int, Meta(ge=1, le=86_400_000_000)] = 1_000_000
    """A planned start is a multiple of this: what ends at nearly one time is planned on at one time."""
    plan_ttl_us: Annotated[int, Meta(ge=1_000_000, le=604_800_000_000)] = 3_600_000_000
    """A plan so old is made anew."""


class Policy(Part, frozen=True, kw_only=True):
    """Everything that steers decisions and is not a fact about the world. Spans are in microseconds.

    `name` and `version` choose the rules; the other fields set them. A change of how a version decides is a new version.
    """

    name: Name = "default"
    version: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    filters: Annotated[tuple[Label, ...], Meta(max_length=32)] = ("ready", "taints", "selector", "model", "resources")
    scores: Annotated[tuple[Weight, ...], Meta(max_length=32)] = (Weight(name="model-preference"), Weight(name="best-fit"))
    queues: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)] = ("default",)
    """Queues that a job may name beside those of the tree (`QueueSet`). They are equal and have no limits."""
    preemption: bool = True
    beat_us: Micros = 5_000_000
    silent_after_us: Micros = 30_000_000
    lease_us: Micros = 300_000_000
    margin_us: Micros = 30_000_000
    ready_timeout_us: Micros = 600_000_000
    kill_margin_us: Micros = 10_000_000
    """Added to a grace before a task that was not reported gone is held to be stuck."""
    min_runtime_us: Micros = 0
    """How long after its start an instance is no victim."""
    nomination_ttl_us: Micros = 600_000_000
    """How long a nomination outlives the end of its victims' grace."""
    backoff_us: Micros = 60_000_000
    """First wait after a start failure blamed on a node; doubles each time."""
    backoff_max_us: Micros = 3_600_000_000
    flap_limit: Annotated[int, Meta(ge=0, le=1000)] = 3
    """So many silences within `flap_window_us` and the node is quarantined; 0 means never."""
    flap_window_us: Micros = 600_000_000
    quarantine_us: Micros = 1_800_000_000
    forget_after_us: Micros = 3_600_000_000
    too_old_us: Micros = 1_800_000_000
    inputs_max: Annotated[int, Meta(ge=1, le=2000)] = 2000
    decisions_max: Annotated[int, Meta(ge=1, le=20_000)] = 20_000
    placements_max: Annotated[int, Meta(ge=1, le=100_000)] = 100_000
    deferrals_max: Annotated[int, Meta(ge=0, le=200)] = 200
    pending_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    targets: Annotated[tuple[TargetClass, ...], Meta(max_length=256)] = ()
    """The workload that the score `fgd` measures fragmentation against; no other rule reads it."""
    reclaim: bool = True
    """Whether what a queue is guaranteed is taken back from those who borrowed it."""
    reclaim_min_runtime_us: Micros = 0
    """How long after its start what was borrowed is not taken back."""
    aging_after_us: Micros = 0
    """A waiting job stands one priority higher for each such span since its submission; 0 means never."""
    aging_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    """By so many priorities at most."""
    backfill: Backfill | UnsetType = UNSET
    """Unset, nothing is planned: whoever fits starts, whatever that does to those above it who do not."""
    order: Literal["shortest", "smallest"] | UnsetType = UNSET
    """Who comes first of those of equal priority in a queue, ties by place. Unset, who was submitted first; else whose time limit
    is shorter, or whose time limit times what it needs is smaller: thousandths of a GPU, for tasks without one of a core."""
    strict: bool | UnsetType = UNSET
    """Nobody starts before somebody of his queue who stands above him and does not fit."""
    history_half_life_us: Annotated[int, Meta(ge=60_000_000, le=31_536_000_000_000)] | UnsetType = UNSET
    """Where queues stand in a tree: by what they used of late they are ordered, what is so old counts half (Slurm's Fair Tree);
    unset, by what they have now."""
    job_filters: Annotated[tuple[Label, ...], Meta(max_length=32)] | UnsetType = UNSET
    """The filters about fields that few jobs have; unset means every one that there is. A job that asks for what none of them
    looks at is rejected; one that asks for nothing of the kind is decided as if they did not exist."""


class PolicySet(Event, frozen=True, kw_only=True):
    """From here on decisions follow this policy."""

    policy: Policy
    by: Text = ""


class LicencesSet(Event, frozen=True, kw_only=True):
    """From here on the cell has these consumables and no others. With fewer than are held nothing ends, and none is given."""

    licences: Annotated[dict[Annotated[str, Meta(min_length=1, max_length=63)], Quantity], Meta(max_length=256)] = {}
    by: Text = ""


class Loss(Part, frozen=True, kw_only=True):
    """What is gone of one source of inputs."""

    source: Label
    """Topic and partition."""
    position: Annotated[int, Meta(ge=0, le=2**53)]
    """The offset that was to be read next."""
    resumed: Annotated[int, Meta(ge=0, le=2**53)]
    """The offset at which reading goes on."""


class LossAccepted(Event, frozen=True, kw_only=True):
    """Messages were lost that no cycle had taken, and an operator said to go on without them.

    The positions of its cycle move accordingly. Nothing else follows from it.
    """

    lost: Annotated[tuple[Loss, ...], Meta(min_length=1, max_length=4096)]
    by: Text = ""


class InputRefused(Event, frozen=True, kw_only=True):
    """Something arrived that is no input, and this is why. The message itself is not kept."""

    source: Label
    """Topic and partition, or another name of where it came from."""
    offset: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    id: Annotated[str, Meta(max_length=128)] = ""
    """What it was said to be about: its key."""
    event: Annotated[str, Meta(max_length=128)] = ""
    """The id of the CloudEvent that it came as."""
    reason: Text
    digest: Annotated[str, Meta(max_length=128)] = ""
    """BLAKE2b, in hexadecimal, of the entry that it would be; of the message's value where it is no CloudEvent of ours."""


class EntryQuarantined(Event, frozen=True, kw_only=True):
    """A recorded entry of a known kind whose body does not decode: folded as nothing, by every build alike."""

    kind: Label
    reason: Text = ""
