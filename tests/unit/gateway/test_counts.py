"""The counts of queues that are kept from cycle to cycle are those that counting anew gives, after every kind of event."""

from muster.events.codec import decode_cycle
from muster.events.decisions import JobsForgotten
from muster.gateway.counts import QueueCounts
from muster.gateway.shown import QueueList, queue_list
from muster.scheduler.core import Core
from tests.golden import recorded

PHASES = ("cancelled", "failed", "finished", "pending", "rejected", "running", "starting", "stopping")


def plain(found: QueueList) -> tuple[int, dict[str, tuple[int, dict[str, int]]]]:
    return found.cycle, {queue.queue: (queue.jobs, queue.instances) for queue in found.queues}


def test_they_are_what_counting_anew_gives() -> None:
    phases: dict[str, None] = {}
    forgotten = 0
    for name in recorded.names():
        core: Core | None = None
        counts: QueueCounts | None = None
        for data in recorded.read(recorded.LOGS, name):
            cycle = decode_cycle(data)
            if core is None or counts is None:
                core = Core(cycle.cell)
                counts = QueueCounts(core.state)
            core.follow(data)
            counts.fold(core.state, cycle)
            anew = queue_list(core.state)
            assert plain(counts.shown(core.state)) == plain(anew), (name, cycle.number)
            forgotten += sum(type(event) is JobsForgotten for event in cycle.decisions)
            for queue in anew.queues:
                phases.update(dict.fromkeys(queue.instances))
        assert core is not None
        assert plain(QueueCounts(core.state).shown(core.state)) == plain(queue_list(core.state))
    assert sorted(phases) == sorted(PHASES), "a phase does not occur, and is not tested"
    assert forgotten > 50
