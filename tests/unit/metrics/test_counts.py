"""What is counted of a cell is what its log says, whoever folds it and from wherever."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from muster.cluster.evolve import apply
from muster.cluster.state import State
from muster.events.codec import decode_cycle
from muster.events.decisions import InstanceBound
from muster.events.operations import InputRefused
from muster.measures import counts as module
from muster.measures.counts import FADE_US, LATENCY, Counts
from muster.metrics import Histogram
from muster.metrics.catalogue import LATENCY_S, METRICS, OTHER, VALUES_MAX
from tests.support.build import S, group, job, node
from tests.unit.metrics.worlds import Counted, Life


def values(counts: Counts) -> dict[tuple[str, tuple[str, ...]], Any]:
    """All samples; of a histogram what the page has of it."""
    return {
        (name, labels): value.buckets() if isinstance(value, Histogram) else value for name, labels, value in counts.samples()
    }


def folded(records: list[bytes], counts: Counts | None = None) -> Counts:
    """The counts of these records by a reader of its own."""
    state = State("main")
    found = counts if counts is not None else Counts("main")
    for data in records:
        cycle = decode_cycle(data)
        apply(state, cycle)
        if cycle.number > found.number:
            found.fold(state, cycle, len(data))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_every_reader_of_a_log_comes_to_the_same_counts_also_one_that_went_on_from_what_another_wrote_down(seed: int) -> None:
    life = Life(seed)
    for _ in range(60):
        life.turn()
    middle = life.driver.counts.dump()
    number = life.driver.state.number
    for _ in range(60):
        life.turn()
    whole = values(life.driver.counts)
    assert values(folded(life.driver.records)) == whole
    loaded = Counts.load(middle, "main", number)
    assert loaded is not None
    assert values(folded(life.driver.records, loaded)) == whole
    assert loaded.dump() == life.driver.counts.dump()
    assert loaded.targets() == life.driver.counts.targets() != ()


@pytest.mark.parametrize("seed", range(4, 8))
def test_the_counts_are_those_of_the_entries(seed: int) -> None:
    life = Life(seed)
    for _ in range(120):
        life.turn()
    cycles = [decode_cycle(data) for data in life.driver.records]
    found = values(life.driver.counts)
    for side in ("input", "decision"):
        assert found["muster_log_entries_total", (side,)] == sum(len(getattr(cycle, f"{side}s")) for cycle in cycles) > 0
    entries: list[Any] = [event for cycle in cycles for event in cycle.decisions]
    placed = sum(len(event.placements) for event in entries if type(event).__name__ in ("InstanceBound", "MembersReplaced"))
    assert found["muster_placements_total", ()] == placed > 0
    assert found["muster_log_cycles_total", ()] == len(cycles)
    assert found["muster_log_bytes_total", ()] == sum(map(len, life.driver.records))
    again = Counter(event.reason for event in entries if type(event).__name__ == "AttemptEnded" and event.then == "pending")
    requeued = {labels[0]: value for (name, labels), value in found.items() if name == "muster_requeues_total" and value}
    assert requeued == again
    first = [event for event in entries if type(event) is InstanceBound and event.attempt == 1]
    observed = sum(value[0][-1][1] for (name, _), value in found.items() if name == LATENCY)
    assert observed == len(first) > 0


def test_latency_is_from_the_cycle_of_the_submission_to_the_cycle_of_the_first_binding_by_queue_and_size() -> None:
    driver = Counted(queues=("default", "gpu"))
    driver.step(job("early", group(count=2), queue="gpu"))
    driver.step(node("n0", 2), after_s=3)
    driver.step(job("part", group(gpu_milli=200)))
    driver.run("early")
    driver.exit("early")
    driver.step(job("cpu", group(cpu_milli=10)))
    found = values(driver.counts)
    buckets, total = found[LATENCY, ("gpu", "2-8")]
    assert total == 3.0
    assert [count for bound, count in buckets if bound == "2.5"] == [0]
    assert [count for bound, count in buckets if bound == "5.0"] == [1]
    assert [name for name, labels in found if labels == ("default", "none")] == [LATENCY]
    waited = [cycle.at_us for cycle in driver.cycles if any(type(event) is InstanceBound for event in cycle.decisions)]
    assert found[LATENCY, ("default", "share")][1] == (waited[1] - driver.job("part").submitted_us) / S


def test_a_binding_after_a_preemption_is_a_requeue_and_no_latency() -> None:
    driver = Counted()
    driver.step(node("n0", 1))
    driver.step(job("low"))
    driver.run("low")
    driver.step(job("high", priority=10))
    driver.exit("low", code=-15)
    driver.run("high")
    driver.exit("high")
    found = values(driver.counts)
    assert found["muster_preemptions_total", ("default",)] == 1
    assert found["muster_requeues_total", ("preempted",)] == 1
    assert found["muster_attempts_ended_total", ("finished",)] == 1
    assert found[LATENCY, ("default", "1")][0][-1][1] == 2
    assert found["muster_placements_total", ()] == 3
    assert driver.attempt("low").number == 2, "it was bound again, or this tests nothing"


def test_what_was_refused_is_counted_by_topic_and_a_term_with_the_time_that_nobody_led() -> None:
    driver = Counted()
    driver.step(InputRefused(source="muster.jobs/3", reason="no"), InputRefused(source="muster.jobs/4", reason="no"))
    driver.lead(gap_us=7 * S)
    found = values(driver.counts)
    assert found["muster_inputs_refused_total", ("muster.jobs",)] == 2
    assert found["muster_inputs_refused_total", ("muster.nodes",)] == 0
    assert found["muster_terms_total", ()] == 2
    assert found["muster_leaderless_seconds_total", ()] == 7.0


def test_labels_are_bounded_and_nothing_is_lost_with_those_beyond() -> None:
    driver = Counted(checked=False)
    driver.step(node("n0", 1))
    driver.step(*[InputRefused(source=f"topic{number}/0", reason="no") for number in range(3 * VALUES_MAX)])
    counts = driver.counts
    for number in range(2 * VALUES_MAX):
        counts._histogram(f"q{number}", "1").observe(1)
    found = values(counts)
    refused = {labels[0]: value for (name, labels), value in found.items() if name == "muster_inputs_refused_total"}
    assert len(refused) == VALUES_MAX + 1
    assert refused[OTHER] > 0
    assert sum(refused.values()) == 3 * VALUES_MAX
    queues = {labels[0]: value for (name, labels), value in found.items() if name == LATENCY}
    assert len(queues) == VALUES_MAX + 1
    assert sum(value[0][-1][1] for value in queues.values()) == 2 * VALUES_MAX


def test_shapes_are_bounded_and_those_beyond_are_counted_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LANES_MAX", 5)
    driver = Counted(checked=False)
    driver.step(node("n0", 0))
    driver.step(*[job(f"j{number}", group(cpu_milli=1 + number)) for number in range(20)])
    assert sum(len(lanes) for lanes in driver.counts._lanes.values()) == 5
    assert values(driver.counts)[LATENCY, ("default", "none")][0][-1][1] == 20


def test_the_mix_of_what_was_bound_fades_by_the_day_and_forgets_what_is_gone() -> None:
    driver = Counted(checked=False)
    driver.step(node("n0", 0, cpu_milli=10**9, memory_mib=10**9))
    driver.step(*[job(f"a{number}", group(cpu_milli=1)) for number in range(8)], job("b", group(cpu_milli=2)))
    assert [(target.cpu_milli, target.weight) for target in driver.counts.targets()] == [(1, 888), (2, 111)]
    driver.step(at_us=driver.state.at_us + FADE_US)
    assert [(target.cpu_milli, target.weight) for target in driver.counts.targets()] == [(1, 1000)]
    driver.step(at_us=driver.state.at_us + 10 * FADE_US)
    assert driver.counts.targets() == ()
    assert driver.counts._lane_count == 0


def test_counts_of_another_cycle_or_cell_or_with_other_buckets_are_not_taken() -> None:
    driver = Counted()
    driver.step(node("n0", 1))
    driver.step(job("a"))
    data, number = driver.counts.dump(), driver.state.number
    assert Counts.load(data, "main", number) is not None
    assert Counts.load(data, "main", number - 1) is None
    assert Counts.load(data, "other", number) is None
    assert Counts.load(data[:-10], "main", number) is None
    assert Counts.load(b"\xff\xff", "main", number) is None
    raw = msgspec.json.decode(data)
    raw["latencies"][0][2].append(0)
    assert Counts.load(msgspec.json.encode(raw), "main", number) is None


def test_the_buckets_of_a_latency_are_the_catalogues() -> None:
    assert METRICS[LATENCY].buckets == LATENCY_S
