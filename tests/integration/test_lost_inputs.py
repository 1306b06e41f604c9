"""Messages that are gone before they were taken: the scheduler stops and names them, and goes on at an operator's word alone."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from muster.events.codec import open_envelope
from muster.events.operations import LossAccepted
from muster.log.bus import Bus
from muster.log.reader import read_admitted
from muster.log.topics import create
from muster.scheduler.messages import JOBS
from tests.support.cell import START, Cell, Gateway, cell, until
from tests.support.kafka import Brokers, bus_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with bus_broker(tmp_path_factory.mktemp("brokers")) as started:
        yield started


def muster(*words: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run([sys.executable, "-c", START, *words], capture_output=True, text=True, check=False, timeout=120)


def recover(broker: Brokers) -> subprocess.CompletedProcess[str]:
    return muster("recover", "--accept-loss", "--bus", broker.address, "--by", "ada")


def accepted(log: str) -> list[LossAccepted]:
    """Every such word in the log."""
    cycles = [open_envelope(envelope) for envelope, _ in read_admitted(log)]
    return [event for cycle in cycles for event in cycle.inputs if isinstance(event, LossAccepted)]


def states(gateway: Gateway, jobs: list[str]) -> set[str]:
    """What became of these submissions, as far as the gateway knows."""
    return {(gateway.get(f"/submissions/{job}") or {"state": "unknown"})["state"] for job in jobs}


def submit_while_nobody_leads(made: Cell, count: int) -> None:
    """Put jobs on the bus that no scheduler takes."""
    gateway = made.gateway()
    made.submit(gateway, count=count)
    assert states(gateway, made.jobs[-count:]) == {"waiting"}
    gateway.kill()


def test_a_scheduler_names_what_is_gone_and_goes_on_only_at_a_recorded_word(tmp_path: Path, broker: Brokers) -> None:
    with cell(tmp_path, broker.address) as made:
        scheduler = made.scheduler("scheduler")
        made.leader(scheduler)
        assert recover(broker).returncode == 2, "while somebody leads there is nothing to be said"
        assert scheduler.stop() == 0
        submit_while_nobody_leads(made, 4)
        asyncio.run(_delete_jobs(broker, before=3))
        made.jobs = made.jobs[3:]

        scheduler.start()
        until(lambda: scheduler.process is not None and scheduler.process.poll() is not None, say="the scheduler gives up")
        assert scheduler.process is not None
        assert scheduler.process.returncode == 3
        assert f"{JOBS}/0 begins at 3: offsets 0 to 2 were not read and are gone" in scheduler.text
        assert "muster recover --accept-loss" in scheduler.text

        assert muster("recover", "--bus", broker.address).returncode == 2
        told = recover(broker)
        assert told.returncode == 0, told.stderr
        assert f"{JOBS}/0: 0 was to be read next, 3 is" in told.stdout
        [event] = accepted(made.log)
        assert (event.by, event.lost[0].source, event.lost[0].resumed) == ("ada", f"{JOBS}/0", 3)
        assert "nothing is lost" in recover(broker).stdout
        assert len(accepted(made.log)) == 1

        scheduler.start()
        gateway = made.gateway("after")
        made.agent(gateway)
        until(lambda: states(gateway, made.jobs) == {"recorded"}, say="what was left is taken")
        made.check()


def test_a_leader_stops_when_its_topic_is_gone(tmp_path: Path, broker: Brokers) -> None:
    with cell(tmp_path, broker.address) as made:
        scheduler = made.scheduler("scheduler")
        made.leader(scheduler)
        asyncio.run(_delete_topic(broker))
        until(lambda: scheduler.process is not None and scheduler.process.poll() is not None, say="the scheduler gives up")
        assert f"{JOBS}/0 is gone" in scheduler.text
        asyncio.run(_make_topic(broker))
        submit_while_nobody_leads(made, 2)  # fewer than were taken of the old one
        told = recover(broker)
        assert told.returncode == 0, told.stderr
        assert f"{JOBS}/0: " in told.stdout
        assert ", 0 is" in told.stdout, "everything in a topic that was made anew is still to be read"
        scheduler.start()
        gateway = made.gateway("after")
        until(lambda: states(gateway, made.jobs) == {"recorded"}, say="what was put there is taken")
        made.check()


async def _admin(broker: Brokers) -> AIOKafkaAdminClient:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    return admin


async def _delete_jobs(broker: Brokers, before: int) -> None:
    admin = await _admin(broker)
    await admin.delete_records({TopicPartition(JOBS, 0): RecordsToDelete(before_offset=before)})
    await admin.close()


async def _delete_topic(broker: Brokers) -> None:
    admin = await _admin(broker)
    await admin.delete_topics([JOBS])
    await admin.close()


async def _make_topic(broker: Brokers) -> None:
    while not await create(Bus.parse(broker.address)):  # noqa: ASYNC110  # nobody tells when the old one has gone
        await asyncio.sleep(0.2)
