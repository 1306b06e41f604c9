"""The agent's loops: report the node's whole level, obey its newest assignment, look after the supervisors.

Ideal: what runs on the node is what the newest assignment says, and the log knows it. Where the ideal is left, and why it is
still right: a gateway that is away gives no assignments, so what runs goes on until the lease ends, which supervisors
enforce without the agent; an agent that is away changes nothing either, and the next one reads the same folders; an older
assignment than one that was obeyed is ignored, and so is one for another boot or another node of this name.

A node whose lease has ended reports how everything ended, and then goes on as after a reboot, under another boot id. Only
then is it safe that it has a lease again: a gateway that is behind may still give what was true before.

The gateway is asked for nothing before a report was acknowledged: a node without a lease starts nothing.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from muster.agent import inventory as inventories
from muster.agent import outputs
from muster.agent.backoff import Backoff
from muster.agent.cgroup import Groups
from muster.agent.client import Client, GatewayAway, GatewayRefused
from muster.agent.health import MEASURE_S, Health
from muster.agent.home import Home
from muster.agent.inventory import Inventory
from muster.agent.processes import PR_SET_CHILD_SUBREAPER
from muster.agent.protocol import ADDRESS_LABEL, AgentAssignment
from muster.agent.runtimes import CannotRun, Runtime
from muster.agent.slots import now_us
from muster.agent.streaming import Streaming
from muster.agent.tasks import LocalTask, Settings, Tasks
from muster.agent.telemetry import tell
from muster.events.levels import NodeReport
from muster.events.telemetry import GpusSampled

BEAT_S: Final = 5.0
"""A report at least so often."""
CHECK_S: Final = 1.0
REFUSED_S: Final = 2.0
OBEYED_S: Final = 0.25
"""How soon a report says that an assignment was obeyed, if none does before: nobody waits for that word alone."""
PLACES: Final = ("zone", "block", "rack", "nvlink_domain")
"""Labels that say where the node stands are its place in the topology as well."""
STRANGER_S: Final = 0.2
"""How soon to ask again when the log does not know the node yet."""
SWEEP_EVERY: Final = 600
"""Every so many checks it is asked whether old outputs are to be looked for."""

if TYPE_CHECKING:
    from muster.metrics import Endpoint

LOGGER = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told when it is started."""

    gateway: str
    node: str
    data: Path
    others: tuple[str, ...] = ()
    """Gateways to change over to when one fails."""
    devices: str = ""
    cpu_milli: int = 0
    """Instead of what is found; 0 means what is found."""
    memory_mib: int = 0
    address: str = "127.0.0.1"
    token: str = ""
    labels: dict[str, str] = {}
    output_max_bytes: int = 1 << 30
    cgroup: bool = True
    """Whether to look for cgroup v2."""
    beat_s: float = BEAT_S
    telemetry: str = ""
    """The bus that gets what devices measure; empty: nobody does."""
    telemetry_config: str = ""
    telemetry_every_s: float = MEASURE_S
    metrics: str = ""
    """HOST:PORT at which Prometheus may ask; empty: nowhere."""


class Agent:
    """One node's agent. Raises what `Home` and `inventory.take` raise."""

    def __init__(self, options: Options, runtime: Runtime) -> None:
        self.options = options
        self.home = Home(options.data)
        self.groups = Groups(self.home.uid) if options.cgroup else Groups("", mounts=os.devnull)
        self.inventory = self._inventory(runtime)
        self.runtime = runtime
        self.client = Client((options.gateway, *options.others), options.node, options.token)
        self.announce = True
        """The next report says what the node has."""
        self.accepted = asyncio.Event()
        """A report was acknowledged, so assignments may be asked for."""
        self.changed = asyncio.Event()
        self.back = asyncio.Event()
        """A report was acknowledged after one that was not: the gateway is there again."""
        self.last: AgentAssignment | None = None
        self.last_us = 0
        self._said_applied = 0
        """The assignment that the last report said was obeyed."""
        self.waits = False
        """The last assignment is still to be obeyed: there was no lease."""
        settings = Settings(
            node=options.node, gateway=options.gateway, address=options.address, output_max_bytes=options.output_max_bytes
        )
        self.tasks = Tasks(self.home, self.inventory, runtime, self.groups, settings, self.changed.set)
        self.reports = {"acknowledged": 0, "refused": 0, "unanswered": 0}
        """How many were sent, by what came of them."""
        self.streaming = Streaming(self.home.output, self.client, self._ended)
        self._said: dict[str, str] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Be the node's agent until told to stop. What runs then goes on running."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop = asyncio.get_running_loop()
        wake = partial(loop.call_soon_threadsafe, self.changed.set)
        self.health = Health(self.inventory, self.home.folder, wake, self.options.telemetry_every_s)
        loop.add_reader(self.home.pipe, self._poked)
        self._introduce()
        endpoint = await self._serve_metrics()
        self._prepare()
        loops = [asyncio.create_task(work()) for work in (self._report_loop, self._assignment_loop, self._check_loop)]
        if self.options.telemetry:
            loops.append(asyncio.create_task(self._tell()))
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*loops, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [*loops, stopped, *self._preparing.values()]:
                task.cancel()
            await asyncio.gather(*loops, stopped, *self._preparing.values(), return_exceptions=True)
            loop.remove_reader(self.home.pipe)
            if endpoint is not None:
                await endpoint.close()
            await self.streaming.close()
            await self.client.close()
            self.health.close()
            self.tasks.close()
            self.groups.close()
            self.home.close()

    def report(self) -> NodeReport:
        """The node's whole level now, with a sequence of its own."""
        devices = self.health.reports()
        spec = self.inventory.spec if self.announce else None
        if spec is not None:
            health = {device.uuid: device.health for device in devices}
            spec = msgspec.structs.replace(
                spec, devices=tuple(msgspec.structs.replace(item, health=health[item.uuid]) for item in spec.devices)
            )
        self._said_applied = self.home.applied
        return NodeReport(
            node=self.options.node,
            uid=self.home.uid,
            boot=self.home.boot,
            boots=self.home.boots,
            sequence=self.home.next_sequence(),
            applied=self.home.applied,
            spec=spec,
            tasks=self.tasks.reports(),
            devices=devices,
        )

    def sampled(self) -> GpusSampled:
        """What the node's devices measured last."""
        return GpusSampled(node=self.options.node, uid=self.home.uid, boot=self.home.boot, samples=self.health.samples())

    def obey(self, assignment: AgentAssignment) -> bool:
        """Do what the assignment says, unless a newer one was obeyed. False when it is meant for another node or boot."""
        if assignment.uid != self.home.uid or assignment.boot != self.home.boot:
            self._say("assignment", "the log does not know this node, or this boot of it, yet")
            return False
        if assignment.number < self.home.applied:
            self._say("assignment", f"the gateway is behind: it gives cycle {assignment.number}, {self.home.applied} was obeyed")
            self.client.change()
            return True
        self._say("assignment", "")
        self.last, self.last_us = assignment, now_us()
        self._obey_last()
        return True

    def _obey_last(self) -> None:
        assignment = self.last
        if assignment is None:
            return
        self.tasks.cell = assignment.cell
        log_now_us = (assignment.now_us or assignment.at_us) + now_us() - self.last_us
        self.waits = not self.tasks.obey(assignment.tasks, log_now_us)
        if not self.waits:
            if assignment.number > self.home.applied:
                self.home.obeyed(assignment.number)
                asyncio.get_running_loop().call_later(OBEYED_S, self._say_obeyed, assignment.number)
        self._prepare()

    def _say_obeyed(self, number: int) -> None:
        """Report, unless a report has said it since."""
        if self._said_applied < number:
            self.changed.set()

    async def _report_loop(self) -> None:
        backoff = Backoff()
        while True:
            self.changed.clear()
            announced = self.announce
            last = self.home.lease_ended() and self.tasks.all_ended()
            report = self.report()
            sent_us = now_us()
            try:
                answer = await self.client.report(report)
            except GatewayRefused as error:
                self.reports["refused"] += 1
                self._say("report", f"the gateway refuses the report: {error}")
                self.announce = True
                await asyncio.sleep(REFUSED_S)
                continue
            except GatewayAway as error:
                self.reports["unanswered"] += 1
                self._say("report", str(error))
                await asyncio.sleep(backoff.next_s(error.refused))
                continue
            if backoff.reset():
                self.back.set()
            self.reports["acknowledged"] += 1
            self._say("report", "")
            self._say("name", answer.warning)
            if answer.durable and self.home.lease_ended():
                if last:
                    await self._begin_anew()
            elif answer.durable:
                self.home.extend_lease(sent_us + answer.lease_us)
                self.announce = self.announce and not announced
                self.accepted.set()
            if not answer.known:
                self.announce = True
                self.changed.set()
            if self.waits:
                self._obey_last()
            with contextlib.suppress(TimeoutError):
                beat_s = min(self.options.beat_s, max(0.1, answer.lease_us / 3_000_000))
                async with asyncio.timeout(0.05 if not answer.known else beat_s):  # wait_for of 3.11 can lose a cancellation
                    await self.changed.wait()

    async def _begin_anew(self) -> None:
        """The lease ended, nothing runs any more, and it is known how everything ended."""
        while not self.tasks.forget_all():  # noqa: ASYNC110  # nothing says that a supervisor has left
            await asyncio.sleep(0.05)
        self.home.begin_boot()
        self.last, self.waits = None, False
        self.announce = True
        self.changed.set()
        LOGGER.warning("the lease ended: this node goes on as after a reboot, as boot %s", self.home.boot)

    async def _assignment_loop(self) -> None:
        await self.accepted.wait()
        after = 0
        backoff = Backoff()
        while True:
            asked_us = now_us()
            try:
                assignment = await self.client.assignment(after, self.home.uid)
            except GatewayRefused as error:
                self._say("assignment", f"the gateway gives no assignment: {error}")
                self.announce = self.announce or error.status == 404
                self.changed.set()
                await asyncio.sleep(backoff.next_s(refused=False))
                continue
            except GatewayAway as error:
                self._say("assignment", str(error))
                await self._pause(backoff.next_s(error.refused))
                continue
            backoff.reset()
            if assignment is None:
                await asyncio.sleep(0.05 if now_us() - asked_us < 50_000 else 0)  # a gateway that does not wait
                continue
            if not self.obey(assignment):
                after = 0
                await asyncio.sleep(STRANGER_S)
                continue
            self.streaming.serve(assignment.wanted)
            if assignment.number <= after and now_us() - asked_us < 50_000:
                await asyncio.sleep(0.05)
            after = assignment.number

    async def _pause(self, wait_s: float) -> None:
        """Wait so long, or until a report finds that the gateway is there again."""
        self.back.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.back.wait()

    async def _check_loop(self) -> None:
        count = 0
        while True:
            self.tasks.check()
            self.tasks.keep_spares()
            if self.health.news() or self.tasks.forgot:
                self.tasks.forgot = False
                self.changed.set()
            if count % SWEEP_EVERY == 0:
                outputs.drop_old(self.home.output, {key[0] for key in self.tasks.known}, self.home.machine_boot, now_us())
            count += 1
            await asyncio.sleep(CHECK_S)

    async def _tell(self) -> None:
        options = self.options
        say = partial(self._say, "telemetry")
        await tell(options.telemetry, options.telemetry_config, options.telemetry_every_s, self.sampled, say)

    def _poked(self) -> None:
        """Supervisors say the names of their folders; a command says nothing but that something is new."""
        with contextlib.suppress(BlockingIOError):
            words = os.read(self.home.pipe, 65_536).decode(errors="replace").split("\n")
            for word in dict.fromkeys(words):
                if word:
                    self.tasks.look(word)
            if self.health.news():
                self.changed.set()

    def _prepare(self) -> None:
        """Let the runtime get what tasks need, in threads."""
        waiting, self.tasks.to_prepare = self.tasks.to_prepare, []
        for local in waiting:
            self._preparing[local.name] = asyncio.create_task(self._prepare_one(local))

    async def _prepare_one(self, local: LocalTask) -> None:
        problem: CannotRun | None = None
        if local.task is not None:
            try:
                await asyncio.to_thread(self.runtime.prepare, local.task)
            except CannotRun as error:
                problem = error
        self._preparing.pop(local.name, None)
        self.tasks.prepared(local, problem)

    def _ended(self, job: str, instance: int, attempt: int, rank: int) -> bool:
        """Whether no such task is here that has not ended."""
        return not any(
            key[:2] == (job, instance) and key[2] in (attempt, attempt or key[2]) and key[3] == rank and local.phase != "exited"
            for key, local in self.tasks.known.items()
        )

    async def _serve_metrics(self) -> "Endpoint | None":
        """Let Prometheus ask, where that was said. What is needed for it is loaded only then."""
        if not self.options.metrics:
            return None
        from muster.agent.measured import metrics_of
        from muster.metrics import serve

        try:
            endpoint = await serve(metrics_of(self), self.options.metrics)
        except OSError as error:  # the node's tasks matter more
            LOGGER.error("metrics cannot be served at %s: %s", self.options.metrics, error.strerror or error)
            return None
        LOGGER.info("metrics are at http://%s:%d/metrics", endpoint.host, endpoint.port)
        return endpoint

    def _inventory(self, runtime: Runtime) -> Inventory:
        options = self.options
        limits = ",".join(self.groups.controllers) or "none"
        labels = {
            ADDRESS_LABEL: options.address,
            "muster.runtime": runtime.name,
            "muster.limits": limits,
            "kubernetes.io/hostname": options.node,
            **options.labels,
        }
        found = inventories.take(self.home.folder, self.home.uid, options.devices, labels)
        spec = msgspec.structs.replace(
            found.spec,
            cpu_milli=options.cpu_milli or found.spec.cpu_milli,
            memory_mib=options.memory_mib or found.spec.memory_mib,
            **{name: options.labels[name] for name in PLACES if name in options.labels},
        )
        return msgspec.structs.replace(found, spec=spec)

    def _introduce(self) -> None:
        spec = self.inventory.spec
        kind = "simulated devices" if self.inventory.simulated else "devices"
        LOGGER.info(
            "node %s (%s): %d milli-CPU, %d MiB, %d %s, %d tasks found again",
            self.options.node,
            self.home.uid[:8],
            spec.cpu_milli,
            spec.memory_mib,
            len(spec.devices),
            kind,
            len(self.tasks.known),
        )
        for note in self.inventory.notes:
            LOGGER.info("%s", note)
        if self.groups.missing:
            LOGGER.info("no limits of %s: cgroup v2 does not allow them to this agent", " and ".join(self.groups.missing))

    def _say(self, about: str, sentence: str) -> None:
        """Say it once, until something else is to be said about the same."""
        if self._said.get(about, "") != sentence:
            self._said[about] = sentence
            LOGGER.warning("%s", sentence or f"{about}: all is well again")
