"""The queues as the second judge sees them: what each is charged with, what it is promised and what it may have.

It shares no code with the engine. Charged is what is bound and was not told to stop, and what is nominated: for the queue that
the job names and for every one above it. What queues are promised is worked out anew in each cycle in which it is asked for.

Amounts by name: cpu (milli-CPU), memory (MiB), gpus and gpus/MODEL (millionths), jobs (instances).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from muster.events.jobs import GroupRequest
from muster.events.nodes import Device
from muster.events.queues import DEPTH_MAX, QUEUES_MAX, Amounts, QueueRemoved, QueueSet
from muster.verify.history import History

if TYPE_CHECKING:
    from muster.verify.world import Attempt, AttemptKey, Instance, Job, Node, Task, Use, World

Sum = Counter[str]


class Books:
    """What was said of queues and what is charged to them; nothing before the first word about one."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.said: dict[str, QueueSet] = {}
        self.closed: dict[str, None] = {}
        self.charged: dict[str, Sum] = {}
        self.users: dict[tuple[str, str], Sum] = {}
        self.history: History | None = None  # where the policy keeps one
        self.lending = False  # some queue does not lend all that it is promised
        self._promised: tuple[int, dict[str, Sum], Sum] | None = None

    # What is said

    def evolve(self, event: QueueSet | QueueRemoved) -> None:
        """Fold it in, unless it cannot be said of these queues."""
        open_now = {name: spec for name, spec in self.said.items() if name not in self.closed}
        if isinstance(event, QueueRemoved):
            below = any(spec.parent == event.queue for spec in open_now.values())
            if event.queue == "default" or event.queue not in open_now or below:
                return
            self.closed[event.queue] = None
        else:
            if event.queue not in open_now and len(open_now) >= QUEUES_MAX:
                return
            if event.parent and event.parent not in open_now:
                return
            trial = open_now | {event.queue: event}
            if any(not self._rises(trial, name) for name in trial):
                return
            self.said[event.queue] = event
            self.closed.pop(event.queue, None)
        self._promised = None
        self.lending = any(asked(spec.lend) for name, spec in self.said.items() if name not in self.closed)
        self.count()

    def _rises(self, said: dict[str, QueueSet], name: str) -> bool:
        """Whether the way up from the queue ends, within so many steps."""
        for _ in range(DEPTH_MAX):
            name = said[name].parent if name in said else ""
            if not name:
                return True
        return False

    def path(self, name: str) -> list[str]:
        """The queue and all above it."""
        found = [name]
        while found[-1] in self.said and self.said[found[-1]].parent:
            found.append(self.said[found[-1]].parent)
        return found

    def remember(self) -> None:
        """As the policy says, what is used is kept from now on, or no more."""
        keeps = isinstance(self.world.policy.history_half_life_us, int)
        self.history = (self.history or History(self.world, self)) if keeps else None

    def there(self) -> Sum:
        """What there is of CPU, memory, and GPUs of each model, whatever its health."""
        total: Sum = Counter()
        for node in self.world.rows.values():
            total.update({"cpu": node.spec.cpu_milli, "memory": node.spec.memory_mib})
            known = [device.uuid for device in node.spec.devices]
            total.update(sum_of([Counter({f"gpus/{d.model}": counts(d.profile)}) for d in node.devices if d.uuid in known]))
        return Counter({what: amount for what, amount in total.items() if amount})

    # What is charged

    def count(self) -> None:
        """Count everything from scratch."""
        self.charged, self.users = {}, {}
        for job in self.world.jobs.values():
            for instance in job.instances:
                attempt = instance.attempt
                if attempt is not None:
                    attempt.books = None
                    if attempt.phase != "stopping" and attempt.holding():
                        self.put(attempt, [task for task in attempt.tasks.values() if task.holds and not task.going], 1)
        for kept in self.world.nominations.values():
            self.move(kept.instance.job, nominated(kept.uses), 1)

    def put(self, attempt: "Attempt", tasks: Iterable["Task"], instances: int) -> None:
        """These tasks of it hold something from now on; for what is best-effort nobody is charged."""
        if attempt.instance.job.request.kind == "best-effort":
            return
        attempt.books = self
        total = Counter({"jobs": instances})
        for task in tasks:
            task.charge = amounts(task.group, [task.node.devices[index] for index in task.devices])
            total.update(task.charge)
        self.move(attempt.instance.job, total, 1)

    def release(self, task: "Task") -> None:
        """The task holds nothing any more."""
        job = task.attempt.instance.job
        self.move(job, task.charge, -1)
        if not task.attempt.holding():
            self.move(job, Counter({"jobs": 1}), -1)
            task.attempt.books = None

    def go(self, attempt: "Attempt", tasks: Iterable["Task"]) -> None:
        """These of its tasks were told to go, while it goes on."""
        for task in tasks:
            self.move(attempt.instance.job, task.charge, -1)
            task.charge = Counter()

    def stop(self, attempt: "Attempt") -> None:
        """It was told to stop."""
        attempt.books = None
        self.move(attempt.instance.job, charge_of(attempt), -1)

    def move(self, job: "Job", total: Sum, sign: int) -> None:
        """So much more is charged, or less."""
        for name in self.path(job.queue):
            for sums in (self.charged.setdefault(name, Counter()), self.users.setdefault((name, job.user), Counter())):
                for what, amount in total.items():
                    sums[what] += sign * amount

    # What is promised

    def promised(self, name: str) -> Sum:
        """What the queue is promised, scaled to what is well."""
        return self._worked_out()[1].get(name, Counter())

    def well(self) -> Sum:
        """What there is on nodes that are not lost or fenced, without devices that are not healthy."""
        return self._worked_out()[2]

    def _worked_out(self) -> tuple[int, dict[str, Sum], Sum]:
        if self._promised is None or self._promised[0] != self.world.number:
            well: Sum = Counter()
            for node in self.world.rows.values():
                if node.liveness != "lost" and "fenced" not in node.closed:
                    well.update({"cpu": node.spec.cpu_milli, "memory": node.spec.memory_mib})
                    for device in node.devices:
                        if device.health == "healthy":
                            part = counts(device.profile)
                            well.update({"gpus": part, f"gpus/{device.model}": part})
            whole: dict[str, Sum] = {}
            for name in sorted(self.said, key=lambda name: -len(self.path(name))):
                own = asked(self.said[name].guarantee) if name not in self.closed else {}
                if "gpus" not in own and any(what.startswith("gpus/") for what in own):
                    own["gpus"] = sum(amount for what, amount in own.items() if what.startswith("gpus/"))
                below: Sum = Counter()
                for child, sums in whole.items():
                    if self.said[child].parent == name:
                        below.update(sums)
                whole[name] = Counter({what: max(own.get(what, 0), below[what]) for what in {**own, **below}})
            scaled: dict[str, Sum] = {"": well}
            for name in sorted(whole, key=lambda name: len(self.path(name))):
                parent = self.said[name].parent
                total = sum_of([sums for other, sums in whole.items() if self.said[other].parent == parent])
                there = scaled[parent]
                scaled[name] = Counter(
                    {what: n * there[what] // total[what] if total[what] > there[what] else n for what, n in whole[name].items()}
                )
            self._promised = self.world.number, scaled, well
        return self._promised

    # What may be

    def gone(self, job: "Job") -> str:
        """Which queue above the job was removed; empty for none."""
        return next((f"queue {name} was removed" for name in self.path(job.queue) if name in self.closed), "")

    def excess(self, job: "Job", more: Sum, running: bool = False) -> str:
        """Which limit is exceeded by what is charged now, of which `more` came last; empty if none is.

        A gang that runs may have members replaced in a queue that was removed.
        """
        for name in self.path(job.queue):
            if name in self.closed and not running:
                return f"queue {name} was removed"
            spec, charged = self.said.get(name), self.charged.get(name, Counter())
            if spec is None:
                continue
            caps = asked(spec.limit)
            for what, amount in asked(spec.borrow).items():
                caps[what] = min(caps.get(what, 2**80), self.promised(name)[what] + amount)
            users = self.users.get((name, job.user), Counter())
            for whose, sums, most in (("", charged, caps), (f" of user {job.user}", users, asked(spec.user_limit))):
                for what, amount in most.items():
                    if more[what] > 0 and sums[what] > amount:
                        return f"queue {name} is charged with {sums[what]} {what}{whose}, its limit is {amount}"
        return self._unlent(job, more) if self.lending else ""

    def _unlent(self, job: "Job", more: Sum) -> str:
        """Whether what others do not lend is left."""
        mine, kept = self.path(job.queue), sum_of([])
        keeps = {}
        for name, spec in self.said.items():
            lend = asked(spec.lend) if name not in self.closed else {}
            keeps[name] = {what: max(0, self.promised(name)[what] - amount) for what, amount in lend.items()}
        for name, each in keeps.items():
            if name not in mine and not any(keeps.get(above) for above in self.path(name)[1:]):
                charged = self.charged.get(name, Counter())
                kept.update({what: max(0, amount - charged[what]) for what, amount in each.items()})
        total: Sum = Counter()
        for name, sums in self.charged.items():
            if len(self.path(name)) == 1:
                total.update(sums)
        for what, amount in kept.items():
            if more[what] > 0 and total[what] > self.well()[what] - amount:
                return f"all are charged with {total[what]} {what}, and {amount} are lent to nobody"
        return ""

    def within(self, name: str, asks: Sum) -> bool:
        """Whether so much more is promised to the queue."""
        promised, charged = self.promised(name), self.charged.get(name, Counter())
        if asks["gpus"]:
            models = {what: amount for what, amount in promised.items() if what.startswith("gpus/")}
            if "gpus" not in promised:
                return False
            named = [what for what, amount in asks.items() if amount and what.startswith("gpus/")]
            if models and sum(models.values()) >= promised["gpus"] and any(what not in models for what in named):
                return False
        elif not any(what in promised and asks[what] for what in ("cpu", "memory")):
            return False
        return all(charged[what] + amount <= promised[what] for what, amount in asks.items() if amount and what in promised)

    def borrowed(self, name: str, charge: Sum, less: Sum) -> bool:
        """Whether the queue has more than is promised of what is charged so, when it has so much less."""
        promised, charged = self.promised(name), self.charged.get(name, Counter())
        if charge["gpus"]:
            whats = ["gpus", *[what for what in charge if what.startswith("gpus/") and what in promised]]
        else:
            whats = ["cpu", "memory"]
        return any(charge[what] and charged[what] - less[what] > promised[what] for what in whats)

    def grounds(self, asker: "Instance", victims: Sequence["Attempt"]) -> dict["AttemptKey", tuple[str, ...]]:
        """By victim of another queue, why it may be told to stop for the asker: subtree, reclaim, tier; or nothing."""
        found: dict[AttemptKey, tuple[str, ...]] = {}
        mine, job = self.path(asker.job.queue), asker.job
        asks = least(self.world, job)
        sharing: dict[str, list[Attempt]] = {}
        for victim in victims:
            other = victim.instance.job
            theirs = self.path(other.queue)
            common = next((name for name in theirs if name in mine), "")
            ours, apart = (path[: path.index(common)] if common else path for path in (mine, theirs))
            above = self.path(common) if common else []
            if other.priority < job.priority and any(self._setting(name) == "subtree" for name in above):
                found[victim.key] = ("subtree",)
                continue
            if all(self.borrowed(name, charge_of(victim), Counter()) for name in apart):
                reclaim = bool(ours) and all(self.within(name, asks) for name in ours)
                tier = bool(ours and apart) and self._tier(ours[-1]) > self._tier(apart[-1])
                found[victim.key] = ("reclaim",) * reclaim + ("tier",) * tier
                for name in apart:
                    sharing.setdefault(name, []).append(victim)
        for name, some in sharing.items():
            for gpus in (True, False):
                alike = [victim for victim in some if (charge_of(victim)["gpus"] > 0) is gpus]
                total = sum_of([charge_of(victim) for victim in alike])
                if alike and not any(self.borrowed(name, charge_of(last), total - charge_of(last)) for last in alike):
                    found.pop(alike[-1].key, None)  # one of them too many
        return found

    def protected(self, victim: "Attempt") -> bool:
        """Whether its queue, or one above it, does not let it be told to stop for another."""
        job = victim.instance.job
        spec = self.said.get(job.queue)
        if spec is not None and spec.protected_from is not None and job.priority >= spec.protected_from:
            return True
        return any(self._setting(name) == "off" for name in self.path(job.queue))

    def _setting(self, name: str) -> str:
        return self.said[name].preemption if name in self.said else "queue"

    def _tier(self, name: str) -> int:
        return self.said[name].tier if name in self.said else 0


def counts(profile: str | UnsetType) -> int:
    """What a device counts: a whole GPU as one, a slice by its compute slices as so many sevenths, in millionths."""
    return 1_000_000 if profile is UNSET else 1_000_000 * int(profile.partition("g.")[0]) // 7


def amounts(group: GroupRequest, devices: Iterable[Device]) -> Sum:
    """What one task is charged with."""
    total: Sum = Counter({"cpu": group.cpu_milli, "memory": group.memory_mib})
    for device in devices:
        part = counts(device.profile) if group.gpus else 1000 * group.gpu_milli
        if not part:
            part = 1_000_000 * group.gpu_memory_mib // max(1, device.memory_mib)
        total.update({"gpus": part, f"gpus/{device.model}": part})
    return total


def charge_of(attempt: "Attempt") -> Sum:
    """What an attempt is charged with, unless it was told to stop."""
    return sum_of([Counter({"jobs": 1}), *[task.charge for task in attempt.tasks.values() if task.holds]])


def nominated(uses: dict["Node", list["Use"]]) -> Sum:
    """What a nomination is charged with."""
    found = [amounts(group, [node.devices[index] for index in indices]) for node, some in uses.items() for group, indices in some]
    return sum_of([Counter({"jobs": 1}), *found])


def least(world: "World", job: "Job") -> Sum:
    """What an instance asks for at least, as far as it is known before it has places: a share by memory is of the largest
    device that there is."""
    gone = [(node, device) for node in world.rows.values() for device in node.devices]
    largest = max([1, *[d.memory_mib for node, d in gone if any(d.uuid == one.uuid for one in node.spec.devices)]])
    total: Sum = Counter({"jobs": 1})
    for group in job.request.groups:
        total.update({"cpu": group.min * group.cpu_milli, "memory": group.min * group.memory_mib})
        part = counts(group.gpu_profile) * group.gpus or 1000 * group.gpu_milli or 1_000_000 * group.gpu_memory_mib // largest
        total["gpus"] += group.min * part
        if len(group.gpu_models) == 1:
            total[f"gpus/{group.gpu_models[0]}"] += group.min * part
    return total


def asked(said: Amounts) -> dict[str, int]:
    """What an operator said, by name."""
    named = {"gpus": said.gpu_milli, "cpu": said.cpu_milli, "memory": said.memory_mib, "jobs": said.jobs}
    found = {what: amount * (1000 if what == "gpus" else 1) for what, amount in named.items() if amount is not None}
    return found | {f"gpus/{model}": 1000 * amount for model, amount in said.gpu_milli_by_model.items()}


def sum_of(many: Iterable[Sum]) -> Sum:
    """All of them together."""
    total: Sum = Counter()
    for each in many:
        total.update(each)
    return total
