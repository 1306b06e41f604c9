"""Metrics of a cell on a real broker: gateways say the same of it, and each program says who it is and how far it has read."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.cell import Cell, Gateway, Program, Scheduler, cell, until
from tests.support.dashboard import Page, parsed, value
from tests.support.kafka import Brokers, bus_broker

SAID = re.compile(r"metrics are at (http://\S+)/metrics")
OWN = ("muster_gateway_", "muster_snapshot_", "muster_build_info", "process_", "muster_recovery_", "muster_follower_")
"""What is a gateway's own, and not the cell's."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with bus_broker(tmp_path_factory.mktemp("brokers")) as started:
        yield started


def page(program: Program) -> Page:
    """What it says at the port that it named last."""
    url = until(lambda: SAID.findall(program.text))[-1]
    answer = httpx.get(f"{url}/metrics", trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def of_the_cell(found: Page) -> dict[tuple[str, ...], float]:
    """What every gateway says alike."""
    return {
        (name, *sorted(f"{key}={text}" for key, text in labels.items())): number
        for name, samples in found.items()
        if not name.startswith(OWN) and name != "muster_head_age_seconds"
        for labels, number in samples
    }


def with_metrics(stack: Cell, kind: type[Scheduler], name: str) -> Scheduler:
    """A scheduler that Prometheus may ask."""
    folder = stack.folder / name
    words = ("--bus", stack.bus, "--data", str(folder), "--metrics", "127.0.0.1:0")
    return stack._begin(kind(folder, "scheduler", *words))


def test_gateways_say_the_same_of_the_cell_and_a_standby_that_takes_over_says_that_it_leads(
    broker: Brokers, tmp_path: Path
) -> None:
    with cell(tmp_path, broker.address) as stack:
        first = with_metrics(stack, Scheduler, "first")
        assert stack.leader(first) is first
        gateways = [stack.gateway(f"gateway-{number}") for number in range(2)]
        stack.agent(*gateways)
        stack.submit(*gateways, count=4)
        stack.finished(gateways[0])
        standby = with_metrics(stack, Scheduler, "standby")
        until(lambda: value(page(standby), "muster_head_cycle") > 0)
        assert value(page(first), "muster_scheduler_leads") == 1
        assert value(page(first), "muster_scheduler_cycle_seconds_count", phase="whole") > 0
        assert value(page(standby), "muster_scheduler_leads") == 0
        assert value(page(standby), "muster_recovery_cycles") > 0
        first.kill()
        assert stack.leader(standby, above=1) is standby
        led = page(standby)
        assert value(led, "muster_scheduler_leads") == 1
        assert value(led, "muster_follower_lag_records", follower="scheduler") <= 1
        stack.submit(*gateways, count=1)
        stack.finished(gateways[1])

        def alike() -> bool:
            both = [of_the_cell(read(each)) for each in gateways]
            return both[0] == both[1] and value(read(gateways[0]), "muster_follower_lag_seconds") == 0

        until(alike, say="both gateways stand at one cycle and say the same")
        found = read(gateways[0])
        assert value(found, "muster_scheduling_latency_seconds_count", queue="default", size="1") == 5
        assert value(found, "muster_attempts_ended_total", outcome="finished") == 5
        assert value(found, "muster_terms_total") == 2
        assert value(found, "muster_leaderless_seconds_total") > 0
        assert value(found, "muster_devices", model="H100", state="healthy") == 8
        standby.signal(signal.SIGSTOP)
        try:
            until(lambda: value(read(gateways[0]), "muster_head_age_seconds") > 6, say="that there are no cycles is seen")
        finally:
            standby.signal(signal.SIGCONT)
        stack.check()


def read(gateway: Gateway) -> Page:
    """The page at the gateway itself."""
    answer = httpx.get(f"{gateway.url}/metrics", trust_env=False, timeout=30)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)
