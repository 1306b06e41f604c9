"""A whole cell on three brokers, for tests in which brokers fail: two schedulers, two gateways, two agents, real tasks.

It lives as long as the tests of a module do, so that each finds the log that those before it left. A test does one thing to
the brokers (or to clocks), while a seeded load of jobs is asked for and one task stands throughout; `trial` has all judged.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from muster.log.bus import Bus
from muster.log.topics import create, declared
from tests.support.agents import Node
from tests.support.cell import PATIENCE_S, Cell, Gateway, Scheduler, cell, until
from tests.support.gateway import job
from tests.support.kafka import Brokers
from tests.support.topics import administrator
from tests.support.trouble import Load, come_to_an_end, count, judge_log, judge_runs, planted
from tests.support.wrong_clock import worn

S = 1_000_000
HOUR_S = 3600
POLICY = {
    "beat_us": S,
    "backoff_us": S,
    "backoff_max_us": 4 * S,
    "flap_limit": 0,
    "too_old_us": 2 * HOUR_S * S,
    "forget_after_us": 3 * HOUR_S * S,
}
"""The lease is the usual one, of five minutes. A clock an hour off makes no submission too old, and no job forgotten."""
MOMENTS = ("urgent", "cancel", "cancel")
DEVICES = "9xH100-80GB"
"""One more than anybody asks for at once: that is for what stands."""


class Turns(httpx.BaseTransport):
    """Asks the gateways in turn, as people do: the next one where one does not answer, or not now."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._http = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for left in reversed(range(len(self._ports))):
            request.url = request.url.copy_with(port=self._ports[0])
            request.headers["Host"] = f"127.0.0.1:{self._ports[0]}"
            try:
                answer = self._http.handle_request(request)
            except httpx.TransportError:
                if not left:
                    raise
            else:
                if answer.status_code < 500 or not left:
                    return answer
                answer.close()
            self._ports.append(self._ports.pop(0))
        raise AssertionError("there is no gateway")

    def close(self) -> None:
        self._http.close()


class Three:
    """All of it."""

    def __init__(self, folder: Path, brokers: Brokers) -> None:
        self.folder = folder
        self.brokers = brokers
        self.cell: Cell
        self.schedulers: list[Scheduler] = []
        self.gateways: list[Gateway] = []
        self.agents: list[Node] = []
        self.clocks: dict[str, Path] = {}
        self.judged = 0
        """So many cycles of the log are before this trial."""
        self.load: Load
        self._standing = ""
        self._broken = ""
        """The trial that did not end as it should."""

    def client(self, timeout_s: float = 30.0) -> httpx.Client:
        """A client of the gateways."""
        ports = [int(each.url.rpartition(":")[2]) for each in self.gateways]
        transport = Turns(ports)
        return httpx.Client(base_url="http://127.0.0.1/v1", timeout=timeout_s, transport=transport)

    def leader_of(self, topic: str) -> int:
        """The broker that leads this topic's partition."""
        return int(self._topic(topic)["leader"])

    def in_sync(self, topic: str) -> list[int]:
        """The brokers that have all of it."""
        return sorted(self._topic(topic)["isr"])

    def await_whole(self) -> None:
        """Wait until every broker serves and has everything."""
        self.brokers.await_all()
        for topic in declared():
            until(lambda: self.in_sync(topic.name) == [1, 2, 3], say=f"each broker has all of {topic.name}")  # noqa: B023

    def shift(self, shift_s: int, *names: str) -> None:
        """Set the clocks of these programs, or of all."""
        for name in names or self.clocks:
            new = self.clocks[name].with_suffix(".new")
            new.write_text(str(shift_s))
            new.rename(self.clocks[name])

    def newest_s(self, topic: str) -> float:
        """When the newest message of a topic came, as the broker said that leads it."""

        async def ask() -> float:
            consumer = AIOKafkaConsumer(**Bus.parse(self.brokers.address).client_options(), auto_offset_reset="none")
            await consumer.start()
            try:
                partition = TopicPartition(topic, 0)
                consumer.assign([partition])
                consumer.seek(partition, (await consumer.end_offsets([partition]))[partition] - 1)
                return float((await consumer.getone()).timestamp / 1000)
            finally:
                await consumer.stop()

        return asyncio.run(ask())

    def leading(self) -> Scheduler:
        """Who started the highest term."""
        return max(self.schedulers, key=lambda each: each.led())

    def progress(self) -> None:
        """Wait for a job to finish that is submitted only now."""
        before = len(self.load.accepted)

        def one() -> bool:
            with self.client() as client:
                for id in list(self.load.accepted)[before:]:
                    with contextlib.suppress(httpx.TransportError, KeyError):
                        if client.get(f"/jobs/{id}").json()["job"]["state"] == "finished":
                            return True
            return False

        until(one, say="a job finishes that was submitted only now")

    def caught_up(self) -> bool:
        """Whether every gateway says that it has read all of the log."""
        return all((gateway.get("/state") or {}).get("behind_us") == 0 for gateway in self.gateways)

    def refused(self) -> int:
        """How often somebody who asked was told to come again, or was told nothing."""
        return self.load.counts["not answered"] + self.load.counts["answered later"]

    def stands(self) -> bool:
        """Whether the task that stands runs on as it was started."""
        lines = (self.load.place / "runs" / f"{self._standing}.0").read_text().splitlines()
        what, attempt, _, pid = lines[0].split()
        return (what, attempt, len(lines)) == ("start", "1", 1) and Path(f"/proc/{pid}").exists()

    @contextlib.contextmanager
    def trial(self, name: str, seed: int) -> Iterator[None]:
        """What is done in between is done under load; then there is progress, everything ends, and all is judged."""
        assert not self._broken, f"this cell did not come well out of it when {self._broken}"
        self._broken = name
        self.load = load = Load(
            self, self.folder / "loads" / name, seed, [], 40.0, moments=MOMENTS, pause_s=1.5, later=(404, 429)
        )  # fmt: skip
        self._stand()
        enough = threading.Event()
        people = threading.Thread(target=load.run, args=(enough,))
        people.start()
        try:
            self.progress()
            yield
            self.await_whole()
            self.progress()
            until(self.caught_up, say="each gateway has read all of the log again")
            assert self.stands(), "what ran did not run on"
        finally:
            self.brokers.mend()
            enough.set()
            people.join(PATIENCE_S)
        assert not people.is_alive(), "what was asked is not answered"
        load.accepted[self._standing] = "standing"  # only now, or people might cancel it
        with self.client() as client:
            assert client.post(f"/jobs/{self._standing}/cancel").status_code == 202
            gone = come_to_an_end(client, load)
        self._judge(gone)
        self._broken = ""

    def _judge(self, gone: int) -> None:
        load = self.load
        problems, cycles = judge_log(self.brokers.address)
        begun, self.judged = self.judged, len(cycles)
        cycles = cycles[begun:]
        problems += load.wrong + judge_runs(cycles, load.place, load.accepted)
        counts = count(cycles, load.place)
        counts["jobs that both nodes had failed"] = gone
        counts.update({f"asked: {what}": number for what, number in load.counts.items()})
        print("\n".join(f"{number:>8}  {what}" for what, number in sorted(counts.items())))
        assert not problems, "\n".join(problems)
        assert not planted(cycles, load.place, load.accepted, load.place / "planted"), "the judge does not see everything"

    def _stand(self) -> None:
        place = self.load.place
        body = job("standing", command=("sh", str(place / "task.sh"), str(place), "standing", "3600"), priority=100)
        self._standing = str(body["job"])
        runs = place / "runs" / f"{self._standing}.0"
        with self.client() as client:
            until(lambda: _answers(client, "POST", "/jobs", body), say="what stands is taken")
        until(lambda: runs.exists() and "start" in runs.read_text(), say="what stands runs")

    def _topic(self, topic: str) -> Any:
        """What the brokers say of its partition. One that has died may be asked first; then another is."""

        async def ask() -> Any:
            async with administrator(Bus.parse(self.brokers.address)) as client:
                return (await client.describe_topics([topic]))[0]["partitions"][0]

        def told() -> Any:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                return asyncio.run(ask())
            return None

        return until(told, say=f"a broker describes {topic}")


@contextlib.contextmanager
def three(folder: Path, brokers: Brokers) -> Iterator[Three]:
    """A cell on these brokers, of which nothing is left afterwards."""
    asyncio.run(create(Bus.parse(brokers.address)))
    made = Three(folder, brokers)
    with cell(folder, brokers.address) as made.cell, contextlib.ExitStack() as closing:
        for name in ("first", "second", "left", "right"):
            made.clocks[name] = folder / f"{name}.clock"
        environments = {name: worn(path) for name, path in made.clocks.items()}
        made.schedulers.append(made.cell.scheduler("first", environment=environments["first"]))
        made.cell.leader(*made.schedulers)
        made.schedulers.append(made.cell.scheduler("second", environment=environments["second"]))
        made.gateways += [made.cell.gateway(name, environment=environments[name]) for name in ("left", "right")]
        urls = ",".join(each.url for each in made.gateways)
        for name in ("n1", "n2"):
            agent = Node(urls, folder / "agents" / name, "--devices", DEVICES, name=name)
            agent.data.parent.mkdir(exist_ok=True)
            closing.callback(agent.end)
            agent.start()
            made.agents.append(agent)
        with made.client() as client:
            until(lambda: len(client.get("/nodes").json().get("nodes", ())) == 2, say="both nodes are known")
            assert client.put("/policy", json=POLICY).status_code == 202
        yield made


def strike(process: Scheduler | Gateway) -> None:
    """SIGKILL for the child that does the work; its parent starts it again."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(until(lambda: process.child), signal.SIGKILL)


def sleep(seconds: float) -> None:
    """Let what was done last for a while."""
    time.sleep(seconds)


def _answers(client: httpx.Client, method: str, path: str, body: dict[str, Any]) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.request(method, path, json=body).status_code == 202
    return False
