"""A cell driven by hand whose every cycle is counted, and a random life of one."""

import random
from typing import Any

from muster.events.codec import decode_cycle, encode_cycle
from muster.events.nodes import DeviceHealthChanged, ForeignUseChanged, NodeRemoved, NodesHeard
from muster.events.operations import NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned
from muster.events.record import Cycle
from muster.measures.counts import Counts
from tests.support.build import group, job, node
from tests.support.driver import Driver


class Counted(Driver):
    """A driver whose cycles are counted as they are admitted."""

    def _record(self, cycle: Cycle) -> None:
        super()._record(cycle)
        if not hasattr(self, "counts"):
            self.counts = Counts("main")
        self.counts.fold(self.state, decode_cycle(self.records[-1]), len(encode_cycle(cycle)))


class Life:
    """A cell in which much happens, from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.driver = Counted(
            queues=("default", "gpu"), checked=False, silent_after_us=3_000_000, lease_us=5_000_000, margin_us=1
        )
        self.jobs: list[str] = []
        self.driver.step(*[node(f"n{number}", 4, model=self.chance.choice(["H100", "A100"])) for number in range(6)])

    def turn(self) -> None:
        """One cycle, or a few."""
        chance, driver = self.chance, self.driver
        name = f"n{chance.randrange(6)}"
        known = driver.state.node(name)
        kind = chance.randrange(12)
        if kind < 5:
            shape = chance.choice(
                [group(), group(count=3), group(gpu_milli=300, cpu_milli=500), group(cpu_milli=2000), group(gpus=4)]
            )
            self.jobs.append(f"j{len(self.jobs)}")
            queue = chance.choice(["default", "gpu"])
            driver.step(job(self.jobs[-1], shape, queue=queue, priority=chance.randrange(3), max_retries=1))
        elif kind < 8:
            live = [id for id in self.jobs if id in driver.state.jobs and driver.job(id).instances[0].attempt is not None]
            if live:
                id = chance.choice(live)
                driver.run(id)
                if chance.random() < 0.7:
                    driver.exit(id, code=chance.choice([0, 0, 1]))
        elif known is None:
            driver.step(node(name, 4, uid=f"uid-{len(driver.records)}"))
        elif kind == 8:
            driver.step(chance.choice([NodeCordoned(node=name), NodeUncordoned(node=name), NodeDrained(node=name)]))
        elif kind == 9:
            device = known.devices[chance.randrange(4)].uuid
            health: Any = chance.choice(["healthy", "failed", "degraded"])
            driver.step(DeviceHealthChanged(node=name, uid=known.uid, device=device, health=health))
        elif kind == 10:
            foreign = (known.devices[0].uuid,) if chance.random() < 0.5 else ()
            driver.step(ForeignUseChanged(node=name, uid=known.uid, devices=foreign))
        else:
            missing = (known.row,) if chance.random() < 0.7 else ()
            driver.step(
                chance.choice([NodesHeard(missing=missing), NodeRemoved(node=name, uid=known.uid), NodeFenced(node=name)])
            )
