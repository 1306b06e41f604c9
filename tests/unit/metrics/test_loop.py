"""A scheduler says how long each phase of its cycles took, whether it leads, what waits, and what was void."""

from muster.log.admit import LATE_START, NO_RECORD
from muster.measures.loop import REASONS, Phases, follower, scheduler
from muster.metrics import Histogram
from muster.scheduler.core import Core
from muster.scheduler.spent import Spent
from tests.simulation.small_world import report, spec
from tests.unit.scheduler.driving import NODES, Driver


def test_every_cycle_is_told_to_who_counts_as_well_phase_by_phase() -> None:
    spent = Spent()
    phases = spent.also = Phases()
    for number in range(1, 6):
        spent.cycle(10 * number, 100 * number, 1000 * number, number)
        spent.served(7)
    found = {labels[0]: value.buckets() for _, labels, value in phases.samples() if isinstance(value, Histogram)}
    for phase, name in (("take", "take"), ("decide", "decide"), ("append", "append"), ("tell", "admit"), ("serve", "serve")):
        assert found[name][0][-1][1] == 5
        assert round(found[name][1] * 1_000_000) == spent.phases_us[phase] > 0
    assert round(found["whole"][1] * 1_000_000) == sum(spent.cycles_us)


def test_who_leads_says_so_and_how_much_waits() -> None:
    driver = Driver()
    found = {name: value for name, labels, value in scheduler(driver.core, Phases()) if not labels}
    assert found == {"muster_scheduler_leads": 1, "muster_scheduler_waiting_messages": 0}
    driver.put(NODES, report("n1", spec=spec("n1")))
    found = {name: value for name, labels, value in scheduler(driver.core, Phases()) if not labels}
    assert found["muster_scheduler_waiting_messages"] == 1
    assert dict.fromkeys(name for name, _, value in scheduler(Core("main"), Phases()) if value == 1) == {}


def test_void_records_are_counted_by_reason_and_a_reason_that_did_not_occur_is_there_as_nothing() -> None:
    driver = Driver()
    core = driver.core
    core.follow(b"no record at all")
    core.follow(driver.records[-1])
    found = {labels[0]: value for name, labels, value in follower(core) if name == "muster_records_void_total"}
    assert found == {**dict.fromkeys(REASONS, 0), NO_RECORD: 1, LATE_START: 1}
