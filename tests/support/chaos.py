"""Whatever may come in, in any order: random clusters, jobs, operators, agents and deliveries, late, doubled and foreign ones.

All choices come from one `random.Random`, so that a seed or Hypothesis decides them. What is made is legal at the edge
(`muster.events.edge`) and otherwise unkind.
"""

from random import Random
from typing import Any

import msgspec

from muster.cluster.state import State
from muster.events.base import Event
from muster.events.jobs import (
    GroupRequest,
    JobCancelRequested,
    JobReprioritised,
    JobRequest,
    JobSubmitted,
    Requirement,
    Toleration,
)
from muster.events.nodes import (
    Device,
    DeviceHealthChanged,
    ForeignUseChanged,
    NodeRegistered,
    NodeRemoved,
    NodesHeard,
    NodeSpec,
    Taint,
)
from muster.events.operations import (
    EntryQuarantined,
    InputRefused,
    LeaseExtended,
    NodeCordoned,
    NodeDrained,
    NodeFenced,
    NodeUncordoned,
    Policy,
    PolicySet,
    TargetClass,
    Weight,
)
from tests.support.build import S, exited, missing, ready, started

MODELS = ("A", "B")
SCORES: tuple[tuple[Weight, ...], ...] = (
    Policy().scores,
    (Weight(name="best-fit"),),
    (Weight(name="published-best-fit"),),
    (Weight(name="model-preference", weight=1000), Weight(name="fgd")),
)
TARGETS = (TargetClass(cpu_milli=1000, gpus=1, weight=3), TargetClass(cpu_milli=1000, gpu_milli=500, weight=2))


def policy(random: Random, tight: bool = True) -> Policy:
    """Short spans; bounds that bite where `tight`, and endless patience where not."""
    changes: dict[str, Any] = {}
    if tight and random.random() < 0.3:
        changes = {
            "decisions_max": random.choice((12, 15, 30)),
            "placements_max": random.choice((4, 6, 20)),
            "deferrals_max": random.choice((0, 1, 200)),
        }
    return Policy(
        preemption=random.random() < 0.85,
        silent_after_us=20 * S,
        lease_us=60 * S,
        margin_us=10 * S,
        ready_timeout_us=random.choice((40, 600)) * S if tight else 10**6 * S,
        kill_margin_us=5 * S,
        min_runtime_us=random.choice((0, 0, 30 * S)),
        nomination_ttl_us=random.choice((20, 600)) * S,
        backoff_us=random.choice((0, 30 * S)),
        flap_limit=random.choice((0, 2)),
        flap_window_us=300 * S,
        quarantine_us=60 * S,
        forget_after_us=random.choice((0, 100 * S)),
        scores=random.choice(SCORES),
        targets=TARGETS,
        **changes,
    )


class Chaos:
    """Makes inputs for a cell as its state is."""

    def __init__(self, random: Random, state: State, nodes: int = 4, kind: bool = False) -> None:
        self.random = random
        self.state = state
        self.kind = kind
        """No operator, no failure, no loss: what is submitted can end."""
        self.plain = random.random() < 0.6
        """Nodes and jobs are much alike, and crowded: many preemptions."""
        self.names = [f"n{index}" for index in range(random.randint(1, nodes))]
        self.jobs = 0
        self.uids = 0
        self.kinds: dict[str, tuple[int, int, int]] = {}
        """Model and memory of a node's devices, and whether they are mixed: a device never changes."""
        self.past: list[Event] = []
        self.registered: list[Event] = []

    def nodes(self) -> list[Event]:
        """Every node registers."""
        self.registered = [self.register(name) for name in self.names]
        return self.registered

    def past_submission(self, job: str) -> JobSubmitted:
        """How the job was submitted."""
        return next(event for event in self.past if isinstance(event, JobSubmitted) and event.job == job)

    def inputs(self) -> list[Event]:
        """What arrives in one cycle."""
        chance = self.random
        found: list[Event] = []
        for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
            pick = chance.random()
            if pick < 0.28:
                found.append(self.submission())
            elif pick < 0.75:
                found += self.agents()
            elif not self.kind:
                found += self.trouble()
        self.past += found
        return found

    # Jobs

    def submission(self) -> JobSubmitted:
        """A job of one to three groups."""
        chance = self.random
        self.jobs += 1
        count = chance.choice((1, 1, 1, 1, 2, 2, 3))
        groups: tuple[GroupRequest, ...] = tuple([self.group(f"g{index}") for index in range(count)])
        if not sum(group.min for group in groups):
            groups = (GroupRequest(name="least", gpus=1), *groups)
        changes = self.soft()
        event = JobSubmitted(
            job=f"j{self.jobs}",
            name="n",
            user="u",
            queue="default" if chance.random() < 0.97 else "other",
            request=JobRequest(
                groups=groups,
                priority=chance.choice((0, 0, 1, 2, 5)),
                preemptible=chance.random() < 0.85,
                array=chance.choice((None, None, None, 2)),
                max_retries=chance.choice((0, 1)),
                time_limit_us=None if chance.random() < 0.8 else 50 * S,
                grace_us=chance.choice((0, 10 * S)),
                degraded_grace_us=chance.choice((0, 0, 40 * S)),
                success=chance.choice(("", groups[0].name)) if groups[0].min else "",
            ),
        )
        return msgspec.structs.replace(event, request=msgspec.structs.replace(event.request, **changes)) if changes else event

    def soft(self) -> dict[str, Any]:
        """What else is asked of the job: nothing here."""
        return {}

    def group(self, name: str) -> GroupRequest:
        """Whole devices, a share, an amount of memory, or none."""
        chance = self.random
        count = chance.choice((1, 1, 1, 2, 3, 4))
        if self.plain:
            least = chance.randint(0, count) if chance.random() < 0.2 else count
            cpu_milli = chance.choice((0, 500, 2500))
            if chance.random() < 0.75:
                return GroupRequest(name=name, count=count, min=least, gpus=chance.choice((1, 1, 2)), cpu_milli=cpu_milli)
            milli = chance.choice((300, 500, 700))
            return GroupRequest(name=name, count=count, min=least, gpu_milli=milli, cpu_milli=cpu_milli)
        asked: dict[str, Any] = {"cpu_milli": chance.choice((0, 500, 1000, 3000)), "memory_mib": chance.choice((0, 100, 500))}
        if chance.random() < 0.1:
            asked["disk_mib"] = chance.choice((10, 600))
        sort = chance.random()
        if sort < 0.55:
            asked["gpus"] = chance.choice((1, 1, 1, 2, 2, 3, 4))
        elif sort < 0.75:
            asked["gpu_milli"] = chance.choice((100, 300, 500, 700, 999))
        elif sort < 0.88:
            asked["gpu_memory_mib"] = chance.choice((100, 500, 900, 1500))
        if "gpus" in asked or "gpu_milli" in asked:
            asked["gpu_memory_mib"] = chance.choice((0, 0, 0, 1500))
        if sort < 0.88:
            asked["gpu_models"] = chance.choice(((), (), (), ("A",), ("B",), ("B", "A")))
        if chance.random() < 0.1:
            op: Any = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
            asked["selector"] = (Requirement(key="zone", op=op, values=("x",) if op in ("In", "NotIn") else ()),)
        if chance.random() < 0.3:
            asked["tolerations"] = (Toleration(key="dirt", any_value=True),)
        return GroupRequest(name=name, count=count, min=chance.randint(0, count) if chance.random() < 0.35 else count, **asked)

    # Agents

    def agents(self) -> list[Event]:
        """Some tasks come along: as an agent that obeys would say it."""
        chance = self.random
        alive = [
            task
            for job in self.state.jobs.values()
            for instance in job.instances
            if instance.attempt is not None
            for task in instance.attempt.tasks.values()
            if task.holding
        ]
        found: list[Event] = []
        share = chance.choice((0.3, 0.7, 1.0))
        for task in alive:
            if chance.random() > share:
                continue
            attempt = task.attempt
            name = (attempt.instance.job.id, task.rank, attempt.number, attempt.instance.index)
            if attempt.phase == "stop":
                found.append(exited(*name, code=chance.choice((0, -9))))
            elif attempt.phase == "prepare":
                if not self.kind and chance.random() < 0.08:
                    found.append(exited(*name, code=chance.choice((0, 1)), blame=chance.choice(("", "job", "node"))))
                elif task.phase == "preparing" and attempt.instance.job.gang.single and chance.random() < 0.6:
                    found.append(started(*name))
                elif task.phase == "preparing":
                    found.append(ready(*name, port=chance.choice((0, 4000))))
            elif task.phase == "ready":
                found.append(started(*name))
            elif self.kind or chance.random() < 0.5:
                code = 0 if self.kind or chance.random() < 0.8 else 1
                found.append(exited(*name, code=code, blame=chance.choice(("", "", "job", "node")) if code else ""))
            elif chance.random() < 0.1:
                found.append(missing(*name))
        return found

    # Operators, failures and bad deliveries

    def trouble(self) -> list[Event]:
        """One thing that nobody wants."""
        chance = self.random
        name = chance.choice(self.names)
        node = self.state.node(name)
        uid = node.uid if node is not None and chance.random() < 0.95 else "another"
        which = chance.randrange(17)
        if which <= 1 and self.past:
            return [chance.choice(self.past)]
        if which == 2:
            return [self.foreign()]
        if which == 3:
            return [self.register(name)]
        if which == 4:
            return [NodeRemoved(node=name, uid=uid)] if chance.random() < 0.4 else []
        if which in (5, 6):
            return [self.beat()]
        if which == 7 and node is not None and node.devices:
            health: Any = chance.choice(("healthy", "healthy", "degraded", "failed"))
            return [DeviceHealthChanged(node=name, uid=uid, device=chance.choice(node.devices).uuid, health=health)]
        if which == 8:
            uuids = tuple([each.uuid for each in node.devices if chance.random() < 0.3]) if node is not None else ()
            return [ForeignUseChanged(node=name, uid=uid, cpu_milli=chance.choice((0, 2500)), memory_mib=0, devices=uuids)]
        if which == 9:
            return [NodeCordoned(node=name)]
        if which in (10, 11):
            return [NodeUncordoned(node=name)]
        if which == 12:
            return [chance.choice((NodeDrained(node=name), NodeFenced(node=name)))]
        if which == 13:
            return [LeaseExtended(until_us=self.state.at_us + chance.choice((0, 200)) * S)]
        if which == 14:
            return [PolicySet(policy=policy(chance))] if chance.random() < 0.4 else []
        if which == 15:
            return [InputRefused(source="muster.jobs/0", reason="no"), EntryQuarantined(kind="JobSubmitted")]
        return [self.operated()]

    def operated(self) -> Event:
        """A cancellation or a new priority."""
        chance = self.random
        id = f"j{chance.randint(1, self.jobs + 1)}"
        if chance.random() < 0.6:
            return JobCancelRequested(job=id, instance=chance.choice((None, 0, 1)))
        return JobReprioritised(job=id, priority=chance.choice((0, 1, 3, 9)))

    def foreign(self) -> Event:
        """A report about anything: another attempt, another rank, a job that nobody knows."""
        chance = self.random
        id = f"j{chance.randint(1, self.jobs + 1)}"
        instance = self.state.instance(id, 0)
        attempt = max(1, (instance.attempts if instance is not None else 1) + chance.choice((-2, -1, -1, 0, 1)))
        name = (id, chance.randint(0, 4), attempt, chance.choice((0, 0, 1)))
        return chance.choice((ready(*name), started(*name), exited(*name), exited(*name, code=1), missing(*name)))

    def beat(self) -> NodesHeard:
        """A beat that misses some rows."""
        chance = self.random
        rows = range(len(self.state.ledger.nodes) + 1)
        rate = chance.choice((0.0, 0.0, 0.4))
        gone = tuple([row for row in rows if chance.random() < rate])
        unread = tuple([row for row in rows if row not in gone and chance.random() < rate / 4])
        return NodesHeard(missing=gone, unread=unread)

    def register(self, name: str) -> NodeRegistered:
        """A node: new, changed, booted again, or another one under its name."""
        chance = self.random
        known = self.state.node(name)
        self.uids += 1
        uid, boot = f"u{self.uids}", f"b{self.uids}"
        if known is not None and chance.random() < 0.8:
            uid = known.uid
            boot = known.boot if chance.random() < 0.7 else boot
        count = chance.choice((2, 3, 4)) if self.plain else chance.choice((0, 1, 2, 2, 3, 4))
        model, memory, mixed = self.kinds.setdefault(name, (chance.randrange(2), chance.randrange(2), chance.choice((0, 0, 1))))
        found = tuple(
            [
                Device(
                    uuid=f"{name}-{index}",
                    model=MODELS[(model + mixed * index) % 2],
                    memory_mib=(1000, 2000)[(memory + mixed * (index // 2)) % 2],
                    island=index // 2 if chance.random() < 0.5 else 0,
                    health="healthy" if self.kind or chance.random() < 0.9 else chance.choice(("degraded", "failed")),
                )
                for index in (range(count) if chance.random() < 0.8 else range(1, count + 1))
            ]
        )
        effect: Any = chance.choice(("NoSchedule", "NoExecute"))
        return NodeRegistered(
            node=name,
            uid=uid,
            boot=boot,
            spec=NodeSpec(
                cpu_milli=chance.choice((4000, 8000)),
                memory_mib=chance.choice((1000, 4000)),
                disk_mib=500,
                tasks_max=100 if self.plain else chance.choice((2, 100, 100, 100)),
                labels=chance.choice(({}, {"zone": "x"}, {"zone": "y"})),
                taints=() if self.plain or chance.random() < 0.8 else (Taint(key="dirt", effect=effect),),
                devices=found,
            ),
        )
