"""What is planned, as the second judge sees it, and whether somebody delays it: counted anew for each question, from the tasks.

A holder is *gone* at its promised end: its start (before that, its binding), its time limit, its grace and the policy's
kill margin; one that was told to stop, at its kill and the margin. Without a limit it never is. Who is past his end is taken as
gone where the question is whether another delays a plan, and as never gone where a plan is made.
"""

from dataclasses import dataclass

from msgspec import UNSET

from muster.events.decisions import Placement
from muster.verify.constraints import asked_by, topology_fault
from muster.verify.places import device_fault, held, node_fault, shortage
from muster.verify.waiting import waiting_fault
from muster.verify.world import Attempt, AttemptKey, Instance, InstanceKey, Job, Node, Nomination, Task, Use, World

NEVER = 2**62


@dataclass(slots=True, eq=False)
class Planned:
    """The plan of one instance: its places by node, and its start."""

    key: InstanceKey
    instance: Instance
    uses: dict[Node, list[Use]]
    start_us: int
    until_us: int


class Plans:
    """All that is planned."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.by_key: dict[InstanceKey, Planned] = {}

    @property
    def most(self) -> int:
        """How many plans there may be."""
        backfill = self.world.policy.backfill
        return 0 if backfill is UNSET else backfill.reservations

    def prune(self) -> None:
        """What ended without a word: of instances that are bound or over, and all where the policy plans nothing."""
        waiting = [key for key, each in self.by_key.items() if each.instance.attempt is None and not each.instance.outcome]
        self.by_key = {key: self.by_key[key] for key in waiting} if self.most else {}

    def gone_us(self, job: Job, start_us: int) -> int:
        """When an attempt that starts then is gone."""
        limit_us = job.limit_us
        return (
            NEVER
            if limit_us is None or start_us == NEVER
            else start_us + limit_us + job.request.grace_us + self.world.policy.kill_margin_us
        )

    def end_us(self, attempt: Attempt) -> int:
        """When the attempt promised to be gone."""
        if attempt.phase == "stopping":
            return attempt.kill_at_us + self.world.policy.kill_margin_us
        return self.gone_us(attempt.instance.job, attempt.started_us if attempt.started_us >= 0 else attempt.bound_us)

    def missing(self, planned: Planned, lenient: bool, but: Attempt | None = None) -> str:
        """What the plan lacks from its start until it is gone, of what is held then or planned for those who rank above it.

        `lenient`: who is past his promised end has gone. `but`: as if this attempt held nothing.
        """
        world = self.world
        start_us = max(planned.start_us, world.at_us)
        end_us = self.gone_us(planned.instance.job, start_us)
        for node, asked in planned.uses.items():
            if world.rows.get(node.row) is not node:
                return f"{node.name} is gone"
            before = [each for each in self.by_key.values() if each is not planned and node in each.uses]
            before = [each for each in before if above(world, each.instance, planned.instance)]
            kept = [each for each in world.nominations.values() if node in each.uses]
            begin = [max(each.start_us, world.at_us) for each in before] + [self.since_us(each, lenient) for each in kept]
            if self._alone(node, start_us, lenient, but):
                return f"{node.name} is an exclusive job's, at {start_us}"
            for time_us in [start_us, *[begun_us for begun_us in begin if start_us < begun_us < end_us]]:
                fault = shortage(node, asked, self.taken(node, time_us, before, kept, lenient, but))
                if fault:
                    return f"{fault}, at {time_us}"
        return ""

    def _alone(self, node: Node, time_us: int, lenient: bool, but: Attempt | None) -> bool:
        """Whether an exclusive job is still on the node then, which lets nobody else be there."""
        for task in node.tasks:
            if task.attempt is not but and asked_by(task.attempt.instance.job).exclusive:
                end_us = self.end_us(task.attempt)
                if not lenient if end_us < self.world.at_us else end_us > time_us:
                    return True
        return False

    def taken(
        self, node: Node, time_us: int, before: list[Planned], kept: list[Nomination], lenient: bool, but: Attempt | None
    ) -> list[Use]:
        """What is held, kept and planned on the node at an instant."""
        now_us = self.world.at_us
        leaves: dict[AttemptKey | Task, None] = {}
        for task in node.tasks:
            end_us = self.end_us(task.attempt)
            if task.going:
                end_us = min(end_us, task.kill_at_us + self.world.policy.kill_margin_us)
            overdue = end_us < now_us
            if task.attempt is but or (overdue and lenient) or (not overdue and end_us <= time_us):
                leaves[task] = None
        uses: list[Use] = []
        for nomination in kept:
            since_us = self.since_us(nomination, lenient)
            if time_us < self.gone_us(nomination.instance.job, since_us):
                uses += nomination.uses[node]
            if time_us < since_us:
                leaves |= nomination.victims  # what they hold of it counts once
        for other in before:
            theirs_us = max(other.start_us, now_us)
            if theirs_us <= time_us < self.gone_us(other.instance.job, theirs_us):
                uses += other.uses[node]
        return uses + held(node, leaves)

    def since_us(self, kept: Nomination, lenient: bool) -> int:
        """When the victims of a nomination promised to have gone."""
        since_us = kept.until_us - self.world.policy.nomination_ttl_us + self.world.gaps_us
        if since_us < self.world.at_us:
            since_us = self.world.at_us if lenient else NEVER
        return since_us

    def closed(self, planned: Planned) -> str:
        """Why one of its nodes or devices, or its domains, would not take it now, whatever is held there."""
        places = [(group, node, devices) for node, uses in planned.uses.items() for group, devices in uses]
        fault = topology_fault(asked_by(planned.instance.job), places)
        if fault:
            return fault
        for node, uses in planned.uses.items():
            for group, devices in uses:
                fault = node_fault(self.world, planned.instance.job, node, group) or device_fault(node, group, devices)
                if fault:
                    return fault
        return ""

    def delayed(self, attempt: Attempt, places: tuple[Placement, ...], since_us: int, first: bool = False) -> str:
        """Whose plan these places, held from then on, delay: of those who rank above; empty for nobody's.

        `first`: they replace lost members, which come before those who wait at equal priority.
        """
        rows = {place.row for place in places}
        end_us = self.gone_us(attempt.instance.job, since_us)
        for planned in self.by_key.values():
            touched = any(node.row in rows for node in planned.uses)
            ranks = (
                planned.instance.job.priority > attempt.instance.job.priority
                if first
                else above(self.world, planned.instance, attempt.instance)
            )
            if touched and planned.start_us < end_us and ranks:
                fault = self.missing(planned, lenient=True)
                if fault and not self.missing(planned, lenient=True, but=attempt):
                    return f"{planned.key[0]}/{planned.key[1]}, planned at {planned.start_us}: {fault}"
        return ""


def above(world: World, one: Instance, other: Instance) -> bool:
    """Whether one ranks above the other among those who wait: by priority, higher for who waited long, then by place."""
    mine, theirs = (-_standing(world, each.job) for each in (one, other))
    return _order(world, one, mine) < _order(world, other, theirs)


def _order(world: World, one: Instance, rank: int) -> tuple[int, int, int, int, int]:
    return rank, _turn(one.job), _size(world, one), one.job.place, one.index


def _turn(job: Job) -> int:
    due_us = job.request.deadline_us
    return due_us if isinstance(due_us, int) else 2**62 + (job.request.kind == "headroom")


def _size(world: World, instance: Instance) -> int:
    """What the policy orders by among equals."""
    order, limit_us = world.policy.order, instance.job.limit_us
    if not order:
        return 0
    if limit_us is None:
        return NEVER
    length_s = (limit_us + 999_999) // 1_000_000
    if order == "shortest":
        return length_s
    milli = 0
    for group in instance.job.request.groups:
        if group.gpus or group.gpu_milli or group.gpu_memory_mib:
            milli += group.min * (group.gpus * 1000 or group.gpu_milli or 1000)
        else:
            milli += group.min * group.cpu_milli
    return length_s * milli


def passed_over(world: World, instance: Instance) -> str:
    """Where the policy is strict: who of its queue waits above it, and could start; empty for nobody."""
    job = instance.job
    if not world.policy.strict or job.request.kind == "best-effort":
        return ""
    tree = world.books is not None
    for other in world.jobs.values():
        if other.queue != job.queue or other is job or other.request.kind == "best-effort" or (tree and other.user != job.user):
            continue
        for each in other.instances:
            waits = each.attempt is None and not each.outcome and not each.cancelled and each.not_before_us <= world.at_us
            if waits and not waiting_fault(world, each) and above(world, each, instance):
                return f"{other.queue}: instance {each.index} of a job of priority {other.priority} waits above it"
    return ""


def _standing(world: World, job: Job) -> int:
    after_us = world.policy.aging_after_us
    steps = max(0, world.at_us - job.submitted_us) // after_us if after_us else 0
    behind = 2**40 if job.request.kind == "best-effort" else 0
    return job.priority - behind + min(world.policy.aging_max, steps)
