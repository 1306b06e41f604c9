"""Telemetry on a real broker: samples lead to what a scheduler records of a device, whoever is killed meanwhile."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import TopicPartition as Part
from aiokafka.admin import RecordsToDelete
from confluent_kafka import Consumer, Producer, TopicPartition

from muster.cli.main import run
from muster.client import sync
from muster.events.cloudevents import GPU_HEALTH, TELEMETRY, to_message
from muster.events.codec import open_envelope
from muster.events.levels import DeviceReport, NodeReport
from muster.events.nodes import Device, DeviceHealthChanged, NodeRegistered, NodeSpec
from muster.events.telemetry import GpuSample, GpusSampled, XidCount, decode_sampled
from muster.log.bus import Bus
from muster.log.reader import read_admitted
from muster.telemetry.looking_back import look_back
from muster.telemetry.reducer import Reducer
from tests.support.agents import node
from tests.support.cell import Cell, Program, cell, until
from tests.support.dashboard import parsed, value
from tests.support.kafka import Brokers, bus_broker
from tests.support.topics import administrator, make_topic
from tests.unit.telemetry.samples import rules

Worker = Callable[..., Program]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with bus_broker(tmp_path_factory.mktemp("brokers")) as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, broker: Brokers) -> Iterator[Cell]:
    """A cell with a scheduler that leads."""
    with cell(tmp_path_factory.mktemp("cell"), broker.address) as made:
        made.leader(made.scheduler("scheduler"))
        yield made
        made.check()


@pytest.fixture
def worker(tmp_path: Path, broker: Brokers, made: Cell) -> Worker:
    """Starts a worker of a group; it ends with the cell. Its rules have windows of some seconds."""
    rules(tmp_path)

    def start(group: str) -> Program:
        words = ("telemetry", "worker", "--bus", broker.address, "--rules", str(tmp_path / "rules.toml"))
        more = ("--group", group, "--instance", f"{group}-1", "--metrics", "127.0.0.1:0")
        program = Program(tmp_path / group, *words, *more)
        program.start()
        made.programs.append(program)
        return program

    return start


def inputs(broker: Brokers) -> list[Any]:
    """All that was recorded so far."""
    return [event for envelope, _ in read_admitted(broker.address) for event in open_envelope(envelope).inputs]


def healths(broker: Brokers, node: str) -> dict[str, tuple[str, str]]:
    """By device of the node, the health that was recorded last, and why."""
    found = [event for event in inputs(broker) if isinstance(event, DeviceHealthChanged) and event.node == node]
    return {event.device: (event.health, event.reason) for event in found}


def proposed(broker: Brokers, node: str) -> dict[str, bytes]:
    """By its id, each event about the node's devices on `muster.gpu-health`, in the order in which they came first."""
    made: dict[str, bytes] = {}
    for each in stands(broker, GPU_HEALTH, node):
        id = dict(each.headers())["ce_id"].decode()
        assert made.setdefault(id, each.value()) == each.value(), "one that comes twice says the same"
    return made


def committed(broker: Brokers, group: str) -> int:
    """How far the group says that it read."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        return int(consumer.committed([TopicPartition(TELEMETRY, 0)], timeout=10)[0].offset)
    finally:
        consumer.close()


def stands(broker: Brokers, topic: str, node: str) -> list[Any]:
    """The messages of the node on a topic."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
    try:
        at = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(at)
        consumer.assign([at])
        messages: list[Any] = []
        while len(messages) < end:
            messages += [each for each in consumer.consume(end - len(messages), timeout=5) if each.error() is None]
        return [each for each in messages if each.key() == node.encode()]
    finally:
        consumer.close()


def introduce(broker: Brokers, node: str, *uuids: str) -> None:
    """Let the cell know this node."""
    devices = tuple(Device(uuid=uuid, model="H100", memory_mib=81_920) for uuid in uuids)
    said = tuple(DeviceReport(uuid=uuid, health="healthy") for uuid in uuids)
    spec = NodeSpec(cpu_milli=8000, memory_mib=64_000, devices=devices)
    with sync.Muster(broker.address) as muster:
        muster.report(NodeReport(node=node, uid=f"uid-{node}", boot="b1", sequence=1, spec=spec, devices=said))
    until(lambda: [event for event in inputs(broker) if isinstance(event, NodeRegistered) and event.node == node])


def put(broker: Brokers, messages: list[GpusSampled]) -> None:
    """Put samples on the topic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "partitioner": "murmur2_random"})
    for number, sampled in enumerate(messages):
        headers, value = to_message(TELEMETRY, sampled, "urn:test", f"s-{number}", sampled.samples[0].at_us)
        producer.produce(TELEMETRY, key=sampled.node, value=value, headers=dict(headers))
    assert producer.flush(30) == 0


def level(device: str, at_us: int, **told: Any) -> GpuSample:
    return GpuSample(device=device, at_us=at_us, **{"xids": (), "temperature_millicelsius": 60_000, **told})


def test_what_samples_tell_becomes_health_in_the_log(
    tmp_path: Path, broker: Brokers, made: Cell, worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    introduce(broker, "sampled", "GPU-79", "GPU-hot", "GPU-well")
    running = worker("becomes")
    begin_us = time.time_ns() // 1000 - 600_000_000
    messages = []
    for second in range(0, 120, 3):
        at_us = begin_us + second * 1_000_000
        samples = (level("GPU-hot", at_us, temperature_millicelsius=95_000), level("GPU-well", at_us))
        messages.append(GpusSampled(node="sampled", uid="uid-sampled", boot="b1", samples=samples))
    with sync.Muster(broker.address) as muster:
        muster.gpus_sampled(messages[0])
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(TELEMETRY, key="sampled", value=b"no samples")  # it is passed over
    producer.flush(30)
    put(broker, messages[1:])
    page = tmp_path / "page.prom"
    page.write_text('DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-79",Hostname="sampled"} 79\n')
    told = ["telemetry", "bridge", "--bus", broker.address, "--node", "sampled", "--uid", "uid-sampled", "--once", str(page)]
    assert run(told) == 0
    found = until(lambda: len(healths(broker, "sampled")) == 1 and healths(broker, "sampled"))
    assert found["GPU-hot"][0] == "degraded"
    assert "temperature was never below 95000 in the 20 s from" in found["GPU-hot"][1]
    # The bridge's sample is of now: a window of it ends when a later one comes.
    later_us = time.time_ns() // 1000 + 40_000_000
    put(broker, [GpusSampled(node="sampled", uid="uid-sampled", samples=(level("GPU-79", later_us),))])
    found = until(lambda: len(healths(broker, "sampled")) == 2 and healths(broker, "sampled"))
    assert found["GPU-79"][0] == "failed"
    assert found["GPU-79"][1].startswith("Xid 79: off the bus")
    assert "is passed over: content-type: must be application/json" in running.text
    (url,) = re.findall(r"metrics are at (http://\S+)", running.text)
    told_by = parsed(httpx.get(url, trust_env=False).text)
    assert value(told_by, "muster_telemetry_proposals_total", rule="xid-failed", health="failed") == 1
    assert value(told_by, "muster_telemetry_refused_total") == 1
    assert value(told_by, "muster_follower_lag_records", follower="telemetry") == 0
    assert running.stop() == 0


def test_an_agent_sends_what_its_devices_measure_and_reports_at_once_what_is_fatal(
    tmp_path: Path, broker: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--devices", "2xH100-80GB", "--telemetry", broker.address, "--telemetry-every", "1")
    with node(tmp_path, *words) as (gateway, agent):

        def last() -> list[GpuSample]:
            messages = stands(broker, TELEMETRY, "n1")
            return list(decode_sampled(messages[-1].value()).samples) if messages else []

        first = until(last)
        assert [sample.device[-2:] for sample in first] == ["-0", "-1"]
        assert run(["agent", "feign", "1", "temperature_millicelsius=96000", "--data", str(agent.data)]) == 0
        assert run(["agent", "xid", "0", "79", "--data", str(agent.data)]) == 0
        until(lambda: [report.health for report in gateway.reports[-1].devices] == ["failed", "healthy"])
        assert gateway.reports[-1].devices[0].reason == "Xid 79: the GPU has fallen off the bus"
        until(lambda: [sample.temperature_millicelsius for sample in last()][1] == 96_000)
        assert [each.code for each in last()[0].xids or ()] == [79]
        assert run(["agent", "feign", "1", "warmth=1", "--data", str(agent.data)]) == 2
        assert run(["agent", "mend", "0", "--data", str(agent.data)]) == 0
        until(lambda: [report.health for report in gateway.reports[-1].devices] == ["healthy", "healthy"])


def test_a_worker_that_is_killed_midway_and_started_again_proposes_what_one_that_lived_does(
    tmp_path: Path, broker: Brokers, made: Cell, worker: Worker
) -> None:
    begin_us = time.time_ns() // 1000 - 1200_000_000
    messages = []
    for second in range(0, 900, 3):
        for device in ("GPU-a", "GPU-b"):
            at_us = begin_us + second * 1_000_000
            hot = (second // 60) % 2 == (device == "GPU-a")
            xids = (XidCount(code=95),) if device == "GPU-b" and second > 700 else ()
            told = {
                "temperature_millicelsius": 95_000 if hot else 50_000,
                "pcie_replays": second * 4,  # every window holds, and how much it grew says whether all of it was seen
                "xids": xids,
            }
            messages.append(GpusSampled(node="killed", uid="uid-killed", boot="b1", samples=(level(device, at_us, **told),)))
    reducer = Reducer(rules(tmp_path))
    expected = {made.id: made.message()[2] for sampled in messages for made in reducer.take(sampled)}
    assert len(expected) > 200
    half = len(messages) // 2

    first = worker("killed")
    put(broker, messages[:half])
    until(lambda: committed(broker, "killed") > 0, say="the group has committed how far it read")
    first.kill()
    before = list(proposed(broker, "killed"))
    put(broker, messages[half:])
    again = worker("killed")
    until(lambda: len(proposed(broker, "killed")) >= len(expected), say="every proposal stands on the topic")
    assert proposed(broker, "killed") == expected
    assert before == list(expected)[: len(before)]
    begun = re.findall(r"is read from (\d+) on; (\d+) was read before", again.text)
    assert [int(read) > int(start) for start, read in begun] == [False, True], "it went back"
    print(json.dumps({"proposals": len(expected), "before": len(before), "begun": begun}))
    assert again.stop() == 0


async def test_a_worker_goes_back_by_the_brokers_time_and_by_so_many_messages(
    broker: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, topic = Bus.parse(broker.address), broker.topic("telemetry")
    await make_topic(bus, topic, {"message.timestamp.type": "CreateTime"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    begin_ms = time.time_ns() // 1_000_000 - 3_000_000
    for number in range(3000):
        producer.produce(topic, value=b"x", timestamp=begin_ms + 1000 * number)
    assert producer.flush(30) == 0

    async def begin(read: int, reach_s: int) -> tuple[int, int, int]:
        begun = (await look_back(bus, {0: read}, reach_s, topic))[0]
        return begun.start, begun.committed, (begun.begins_us // 1000 - begin_ms) // 1000 if begun.begins_us else -1

    assert await begin(-1, 600) == (0, 0, -1), "nobody has read, and nothing stands before"
    assert await begin(2900, 1940) == (2899 - 2000, 2900, 899), "2000 s before the last that was read"
    assert await begin(2900, 10) == (1900, 2900, 1900), "at least a thousand messages"
    assert await begin(2900, 86_400) == (0, 2900, -1), "to the first that ever was"
    assert await begin(3000, 1940) == (999, 3000, 999), "where there is nothing new"
    async with administrator(bus) as client:
        await client.delete_records({Part(topic, 0): RecordsToDelete(before_offset=1500)})
    assert await begin(2900, 86_400) == (1500, 2900, 1500), "what stood before is gone, but there was something"
    assert await begin(700, 10) == (1500, 1500, 1500), "so is what comes next"
    monkeypatch.setattr("muster.telemetry.looking_back.MESSAGES_BACK", 0)
    assert await begin(2900, 10) == (2829, 2900, 2829), "and a margin"
