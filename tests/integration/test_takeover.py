"""Takeover on a real broker with real processes: whatever happens to the leader, there is one history, and it goes on.

Each test runs jobs on a real agent while something is done to a scheduler, a gateway or what lies between them and the
broker. In the end every job that was taken has run exactly once, and the whole log is judged: `fsck`, the second judge, and
deciding everything again. Where something is left to chance it comes from the seed that is printed; MUSTER_SEED sets it.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.events.codec import encode_entry
from muster.events.operations import Loss, LossAccepted, NodeCordoned, NodeUncordoned
from muster.log.admit import REPLACED
from muster.log.bus import Bus
from muster.log.kafka import KafkaLog, make_producer
from muster.scheduler.core import Core
from muster.scheduler.messages import OPERATIONS, Message
from muster.scheduler.recovery import recover
from tests.support.cell import Cell, Gateway, Scheduler, cell, until
from tests.support.kafka import Brokers, bus_broker
from tests.support.proxy import Proxy, appends

SEED = int(os.environ.get("MUSTER_SEED", "0")) or (
    random.SystemRandom().randrange(1, 10**6) if "MUSTER_SOAK" in os.environ else 1
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One broker, whose log all tests here go on to write: one cell with a long life."""
    with bus_broker(tmp_path_factory.mktemp("brokers"), "--proxied") as started:
        yield started


@pytest.fixture
def proxy(broker: Brokers) -> Iterator[Proxy]:
    """What lies between the broker and whoever uses `broker.advertised_address`."""
    node = broker.nodes[0]
    with Proxy(node.advertised_port, node.proxied_port) as made:
        yield made


@pytest.fixture
def chance() -> random.Random:
    print(f"MUSTER_SEED={SEED}")
    return random.Random(SEED)


@contextlib.contextmanager
def running(tmp_path: Path, broker: Brokers) -> Iterator[Cell]:
    """A cell without schedulers yet; judged in the end."""
    with cell(tmp_path, broker.address) as made:
        yield made
        made.check()


def led(made: Cell, address: str = "", count: int = 3) -> tuple[Scheduler, Scheduler, Gateway]:
    """A leader, which reaches the broker at `address`; a standby; a gateway with an agent. So many jobs were just submitted."""
    first = made.scheduler("first", address)
    made.leader(first)
    second = made.scheduler("second")
    gateway = made.gateway()
    made.agent(gateway)
    made.submit(gateway, count=count)
    return first, second, gateway


def test_a_standby_takes_over_when_the_leader_is_killed(tmp_path: Path, broker: Brokers, chance: random.Random) -> None:
    with running(tmp_path, broker) as made:
        first, second, gateway = led(made, count=5)
        time.sleep(chance.random())
        first.kill()
        made.submit(gateway, count=5)
        made.leader(second)
        made.finished(gateway)


def test_a_leader_that_was_stopped_finds_itself_replaced_when_it_is_woken(
    tmp_path: Path, broker: Brokers, chance: random.Random
) -> None:
    with running(tmp_path, broker) as made:
        first, second, gateway = led(made)
        time.sleep(chance.random())
        first.signal(signal.SIGSTOP)
        made.submit(gateway, count=3)
        made.leader(second)
        made.finished(gateway)
        first.signal(signal.SIGCONT)
        made.submit(gateway, count=3)
        made.finished(gateway)


def test_a_leader_that_is_cut_off_from_the_broker_is_replaced_and_follows_again_later(
    tmp_path: Path, broker: Brokers, proxy: Proxy, chance: random.Random
) -> None:
    with running(tmp_path, broker) as made:
        first, second, gateway = led(made, broker.advertised_address)
        time.sleep(chance.random())
        proxy.cut()
        made.submit(gateway, count=3)
        replaced = made.leader(second).led()
        made.finished(gateway)
        proxy.mend()
        second.kill()
        made.leader(first, above=replaced)
        made.submit(gateway, count=3)
        made.finished(gateway)


def test_a_leader_whose_connections_go_silent_is_replaced(
    tmp_path: Path, broker: Brokers, proxy: Proxy, chance: random.Random
) -> None:
    with running(tmp_path, broker) as made:
        _, second, gateway = led(made, broker.advertised_address)
        time.sleep(chance.random())
        proxy.stall()
        made.submit(gateway, count=3)
        made.leader(second)
        made.finished(gateway)
        proxy.mend()
        made.submit(gateway, count=3)
        made.finished(gateway)


def test_agents_and_people_change_over_when_their_gateway_is_cut_off_from_the_broker_and_the_leader_is_not(
    tmp_path: Path, broker: Brokers, proxy: Proxy
) -> None:
    with running(tmp_path, broker) as made:
        made.leader(made.scheduler("first"))
        cut, whole = made.gateway("cut", broker.advertised_address), made.gateway("whole")
        made.agent(cut, whole)
        made.submit(cut, whole, count=3)
        proxy.cut()
        made.submit(cut, whole, count=3)
        made.finished(whole)
        until(lambda: cut.get("/state")["behind_us"] > 0, say="the gateway that is cut off says that it is behind")
        cycle = cut.get("/state")["cycle"]
        assert cut.get("/jobs", limit=10_000) is not None, "it goes on to show what it knows"
        assert cycle < whole.get("/state")["cycle"]
        proxy.mend()
        until(lambda: not cut.get("/state")["behind_us"], say="the gateway is at the end of the log again")
        made.finished(cut)


def test_a_standby_that_lags_does_not_lead_while_somebody_does(
    tmp_path: Path, broker: Brokers, proxy: Proxy, chance: random.Random
) -> None:
    with running(tmp_path, broker) as made:
        first = made.scheduler("first", takeover_s=1.0)
        made.leader(first)
        second = made.scheduler("second", broker.advertised_address, takeover_s=1.0)
        until(lambda: "follows the log" in second.text, say="the standby follows")
        gateway = made.gateway()
        made.agent(gateway)
        for _ in range(3):
            proxy.stall()
            before = second.led()
            made.submit(gateway, count=2)
            time.sleep(3 + chance.random())
            made.finished(gateway)
            assert second.led() == before, "who cannot ask where the log ends does not stand there"
            proxy.mend()
            time.sleep(chance.random())
        made.submit(gateway, count=3)
        made.finished(gateway)


def test_an_old_record_that_lands_late_is_nothing(tmp_path: Path, broker: Brokers, proxy: Proxy) -> None:
    with running(tmp_path, broker) as made:
        first, second, gateway = led(made, broker.advertised_address)
        made.finished(gateway)
        proxy.hold(appends)
        made.submit(gateway, count=3)
        assert proxy.held.wait(60), "the leader has made a record, and the broker has not got it"
        first.kill()
        made.leader(second)
        made.finished(gateway)
        voids = made.check().voids.get(REPLACED, 0)
        assert proxy.let_go() >= 1
        until(lambda: made.check().voids.get(REPLACED, 0) > voids, say="the old record stands in the log, and is void")
        made.submit(gateway, count=3)
        made.finished(gateway)


def test_of_two_that_start_cold_one_leads_also_where_folding_takes_longer_than_taking_over(
    tmp_path: Path, broker: Brokers
) -> None:
    asyncio.run(_lengthen(Bus.parse(broker.address)))
    with running(tmp_path, broker) as made:
        first, second = made.scheduler("first", takeover_s=0.5), made.scheduler("second", takeover_s=0.5)
        made.leader(first, second)
        gateway = made.gateway()
        made.agent(gateway)
        made.submit(gateway, count=3)
        made.finished(gateway)
        above = max(first.led(), second.led())
        leader = first if first.led() == above else second
        leader.kill()
        made.leader(second if leader is first else first, above=above)
        made.submit(gateway, count=3)
        made.finished(gateway)


async def _lengthen(bus: Bus) -> None:
    """Write what takes some seconds to fold: a leader's whole term, of operators who change their minds."""
    log = await KafkaLog.open(bus, writer=False)
    core: Core = (await recover(log, "main")).core
    await log.close()
    producer = make_producer(bus)
    await producer.start()
    at_us = max(core.state.at_us, time.time_ns() // 1000)
    records = [core.start_term(at_us, f"{SEED:032x}", "host", "build", 0)]
    core.read_back(records[0])
    words = [encode_entry(NodeCordoned(node="nobody")), encode_entry(NodeUncordoned(node="nobody"))]
    source, offset = f"{OPERATIONS}/9", 0
    for _ in range(300):
        core.offer_all([Message(source, offset + number, words[number % 2], at_us) for number in range(2000)])
        offset += 2000
        at_us += 1000
        data = core.cycle(at_us)
        assert data is not None
        core.read_back(data)
        records.append(data)
    lost = Loss(source=source, position=offset, resumed=0)  # nobody ever put it there
    data = core.accept_loss(at_us, LossAccepted(lost=(lost,), by="tests"))
    core.read_back(data)
    records.append(data)
    await asyncio.gather(*[await producer.send("muster.log", data, partition=0) for data in records])
    await producer.stop()
    began = time.monotonic()
    log = await KafkaLog.open(bus, writer=False)
    await recover(log, "main")
    await log.close()
    print(f"folding takes {time.monotonic() - began:.1f} s")
