"""Whether elastic attempts may gain and lose the members that a log says, as the second judge sees it.

It grows only while it runs, by members that it has not, up to its count. It goes on without a member only at its minimum, and
only for a reason that is so. Who gives members up for somebody who waits is named by that one's nomination; who does so for
one that runs and grows has borrowed them, and the other is within what its queue is promised.
"""

from collections import Counter
from collections.abc import Iterable

from muster.events.base import Event
from muster.events.decisions import InstanceGrown, InstanceShrunk, Nominated
from muster.verify.places import Gone, outranks, spare
from muster.verify.queues import Books, amounts
from muster.verify.world import Attempt, AttemptKey, Instance, Node, Task, Use, World

LOSSES = ("device-failed", "node-lost", "node-removed", "node-rebooted", "drained", "taint", "task-missing")


def growth_fault(attempt: Attempt, event: InstanceGrown) -> str:
    """What is wrong with the ranks and the number of new members."""
    request = attempt.instance.job.request
    ranks = dict.fromkeys([place.rank for place in event.placements])
    if not request.elastic or attempt.phase != "running":
        return f"it is {attempt.phase}, elastic {request.elastic}"
    if not ranks or len(ranks) < len(event.placements) or any(rank in attempt.tasks for rank in ranks):
        return f"its new ranks {list(ranks)[:8]} are its already, or stand twice"
    have = Counter(task.group.name for task in attempt.tasks.values() if not task.going)
    have.update([group.name for rank in ranks if (group := attempt.instance.job.group_of(rank)) is not None])
    for group in request.groups:
        if have[group.name] > group.count:
            return f"{have[group.name]} members of group {group.name}; it takes {group.count}"
    return ""


def shrink_fault(world: World, attempt: Attempt, event: InstanceShrunk, told: dict[Task, None]) -> str:
    """Why the attempt may not lose these members. `told`: those that a nomination of its cycle names."""
    request, tasks = attempt.instance.job.request, attempt.tasks
    if not request.elastic or attempt.phase == "stopping":
        return f"it is {attempt.phase}, elastic {request.elastic}"
    if any(rank not in tasks or tasks[rank].going for rank in event.ranks) or len(set(event.ranks)) < len(event.ranks):
        return f"ranks {list(event.ranks)[:8]} are not all members of it, each once"
    some = [tasks[rank] for rank in event.ranks]
    if not spare(attempt, some):
        return f"without {list(event.ranks)[:8]} it is below its minimum"
    if event.reason == "preempted":
        if event.kill_at_us < world.at_us + request.grace_us:
            return f"they are killed at {event.kill_at_us}, within their grace"
        return "" if all(task in told for task in some) else _growing_fault(world, attempt, event, some)
    if event.reason == "resized":
        left = len([task for task in tasks.values() if not task.going]) - len(some)
        return "" if left >= request.groups[0].count else f"{left} members are left of {request.groups[0].count}"
    if event.reason == "ready-timeout":
        late = attempt.phase == "starting" and world.led_us >= attempt.ready_by_us
        return "" if late and all(task.phase == "preparing" for task in some) else "they are not late"
    so = event.reason in attempt.facts and all(not task.holds or _unwell(task) for task in some)
    return "" if so else f"they are told to go for {event.reason}, which is not so"


def _unwell(task: Task) -> bool:
    node = task.node
    sick = any(index >= len(node.devices) or node.devices[index].health == "failed" for index in task.devices)
    return sick or "drained" in node.closed or any(taint.effect == "NoExecute" for taint in node.spec.taints)


def _growing_fault(world: World, attempt: Attempt, event: InstanceShrunk, some: list[Task]) -> str:
    """Why one that runs may not take these members over."""
    by, books = world.instance(event.by_job, event.by_instance), world.books
    if by is None or by.attempt is None or not by.job.request.elastic or books is None:
        return f"{event.by_job} neither is nominated with them as victims, nor runs and grows"
    if not attempt.instance.job.request.preemptible or not world.policy.reclaim or books.protected(attempt):
        return "the policy, its queue or the job forbids it"
    least_us = world.policy.reclaim_min_runtime_us
    if attempt.started_us >= 0 and world.at_us - attempt.started_us < least_us:
        return f"it ran less than {least_us} us"
    return _not_borrowed(books, by, attempt.instance, some)


def _not_borrowed(books: Books, by: Instance, other: Instance, some: Iterable[Task]) -> str:
    mine, theirs = books.path(by.job.queue), books.path(other.job.queue)
    common = next((name for name in theirs if name in mine), "")
    ours, apart = (path[: path.index(common)] if common else path for path in (mine, theirs))
    gone: Counter[str] = Counter()
    for task in some:
        if not apart or not all(books.borrowed(name, task.charge, gone) for name in apart):
            return f"queue {other.job.queue} has not borrowed them"
        gone.update(task.charge)
    group = by.job.request.groups[0]
    one = amounts(group, [])
    one["gpus"] = 1_000_000 * group.gpus or 1000 * group.gpu_milli
    if not ours or not all(books.within(name, one) for name in ours):
        return f"queue {by.job.queue} is promised no member more"
    return ""


def named(world: World, event: Nominated) -> dict[Task, None]:
    """The members that a nomination names as victims."""
    found: dict[Task, None] = {}
    for some in event.members or ():
        instance = world.instance(some.job, some.instance)
        attempt = instance.attempt if instance is not None else None
        if attempt is not None and attempt.key[2] == some.attempt:
            found.update({attempt.tasks[rank]: None for rank in some.ranks if rank in attempt.tasks})
    return found


def told_to_go(world: World, decisions: Iterable[Event]) -> dict[Task, None]:
    """The members that these decisions tell to go for somebody."""
    found: dict[Task, None] = {}
    for event in decisions:
        if type(event) is InstanceShrunk and event.reason == "preempted":
            instance = world.instance(event.job, event.instance)
            tasks = instance.attempt.tasks if instance is not None and instance.attempt is not None else {}
            found.update({tasks[rank]: None for rank in event.ranks if rank in tasks})
    return found


def go(attempt: Attempt, event: InstanceShrunk) -> None:
    """These members were told to go; those that hold nothing are gone."""
    for rank in event.ranks:
        task = attempt.tasks.get(rank)
        if task is not None and task.holds:
            task.going, task.kill_at_us = True, event.kill_at_us
        elif task is not None:
            del attempt.tasks[rank]


def to_stop(world: World, preempted: Iterable[AttemptKey], victims: Gone) -> list[Attempt]:
    """Those of the victims that this cycle tells to stop, and that were not told yet."""
    found = []
    for job, index, number in preempted:
        instance = world.instance(job, index)
        attempt = instance.attempt if instance is not None else None
        if attempt is not None and attempt.key == (job, index, number) in victims and attempt.phase != "stopping":
            found.append(attempt)
    return found


def parts_of(told: Iterable[Task]) -> list[Attempt]:
    """Members that are told to go, by attempt, as if they were attempts of their own."""
    found: dict[Attempt, Attempt] = {}
    for task in told:
        if not task.going:
            whole = task.attempt
            part = found.setdefault(whole, Attempt(whole.instance, whole.key, 0, whole.bound_us, whole.phase, books=whole.books))
            part.tasks[len(part.tasks)] = task
    return list(found.values())


def needless_part(uses: dict[Node, list[Use]], whole: Attempt) -> dict[Task, None]:
    """Members on the nodes that are used, the highest ranks first, that an elastic attempt could do without."""
    gone: dict[Task, None] = {}
    for rank in sorted(whole.tasks, reverse=True):
        task = whole.tasks[rank]
        if whole.instance.job.request.elastic and task.node in uses and task.holds and not task.going:
            if spare(whole, [*gone, task]):
                gone[task] = None
    return gone


def may_take(world: World, by: Instance, attempt: Attempt, grounds: tuple[str, ...]) -> str:
    """Why one who waits may not take members of an attempt that goes on."""
    policy, request = world.policy, attempt.instance.job.request
    reclaims = "reclaim" in grounds and policy.reclaim
    others = policy.preemption and (not grounds or grounds != ("reclaim",))
    spared = world.books is not None and world.books.protected(attempt)
    if not (reclaims or others) or not request.preemptible or spared:
        return "the policy, its queue or the job forbids it"
    if not grounds and not outranks(world, by, attempt.instance):
        return f"its priority {attempt.instance.job.priority} is not below that of the beneficiary, nor is there another ground"
    return ""
