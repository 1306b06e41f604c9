"""Each measurement on Kafka happens: what it counts stands in its log, and the log is in order. No time is judged."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from muster.bench.pipeline import bus_parts
from muster.bench.pipeline.bus import Home, home
from muster.bench.pipeline.stack import NoStack
from muster.cli.main import run
from muster.events.codec import decode_entry
from muster.events.decisions import InstanceBound
from muster.log.bus import Bus
from muster.log.reader import read_admitted
from muster.log.topics import create
from tests.support.kafka import Brokers, bring_jars

TINY = msgspec.structs.replace(
    bus_parts.QUICK,
    nodes=12,
    warm_s=0.5,
    bound_s=1.0,
    lives_s=1.0,
    connections=8,
    lives_per_s=20.0,
    lives_run_s=(0.1, 0.3),
    idle=3,
    rates=(10.0, 30.0),
    rate_s=1.0,
    takeover_per_s=20.0,
    takeover_after_s=0.5,
    entries=3000,
    recovery_nodes=20,
)
LIFE = ("JobSubmitted", "InstanceBound", "InstanceStarted", "TaskStarted", "TaskExited", "AttemptEnded")
TEXT = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One of these tests' own, since a measurement makes the topics anew."""
    bring_jars()
    with Brokers(tmp_path_factory.mktemp("brokers")) as started:
        yield started


@pytest.mark.parametrize("name", list(bus_parts.PARTS))
def test_what_is_counted_happened_and_the_log_on_kafka_is_in_order(tmp_path: Path, broker: Brokers, name: str) -> None:
    with home(broker.address, tmp_path) as place:
        (found,) = bus_parts.BusBench(TINY, place, tmp_path, lambda _: None).run([name])
        bound = sum(
            isinstance(decode_entry(raw), InstanceBound)
            for envelope, _ in read_admitted(broker.address, "bench" if name == "recovery" else "main")
            for raw in envelope.decisions
        )
    assert [(check.check, check.holds) for check in found.checks] == [("audit", True), ("verify", True)]
    assert all(figure.holds is None for figure in found.figures), "a floor was applied to a small measurement"
    assert found.limit
    counts = found.counts
    if name == "recovery":
        assert counts["entries"] >= TINY.entries
        assert counts["folded"] == counts["records"] > 1
        assert bound > 0
        return
    assert counts["InstanceBound"] == bound == counts["JobSubmitted"] > 0
    if name == "lives":
        assert {counts[kind] for kind in LIFE} == {bound} == {counts["answered"]}
        assert {"scheduler_memory_mib", "gateway_memory_mib"} <= {figure.name for figure in found.figures if figure.value > 0}
    if name == "idle":
        assert bound == TINY.idle
    if name == "rates":
        told = {figure.name for figure in found.figures}
        assert {f"bound_{which}_ms_at_{rate}_per_s" for which in ("p50", "p95", "p99") for rate in (10, 30)} <= told
    if name == "takeover":
        assert counts["takeovers"] == TINY.takeovers
        assert counts["terms"] > TINY.takeovers


def test_a_bus_that_holds_topics_of_musters_is_not_measured_on(tmp_path: Path, broker: Brokers) -> None:
    asyncio.run(create(Bus.parse(broker.address)))
    try:
        with pytest.raises(NoStack, match=r"holds muster\.jobs|holds muster\.log"), home(broker.address, tmp_path):
            pass
        assert run(["bench", "pipeline", "--log", "kafka", "--bus", broker.address, "--quick", "--part", "idle"]) != 0
    finally:
        Home(broker.address).clear()


def test_the_parts_on_kafka_are_those_of_the_documentation() -> None:
    _, _, text = TEXT.partition("## The pipeline on Kafka")
    text, _, _ = text.partition("\n## ")
    assert re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE) == list(bus_parts.PARTS)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--log", "kafka", "--part", "beside"], "--part 'beside'"),
        (["--log", "sqlite", "--bus", "kafka://127.0.0.1:9"], "--bus"),
    ],
)
def test_what_makes_no_sense_on_kafka_is_named(capsys: pytest.CaptureFixture[str], words: list[str], wrong: str) -> None:
    assert run(["bench", "pipeline", *words]) == 2
    assert wrong in capsys.readouterr().err
