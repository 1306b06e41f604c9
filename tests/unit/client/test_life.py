"""A job's life as a client tells it is the one that the state tells: held against every recorded log."""

import pytest

from muster.client.ids import made_ms, new_id
from muster.client.life import OVER, Entry, Life
from muster.cluster.evolve import apply
from muster.cluster.state import State
from muster.events.base import Event
from muster.events.codec import decode_cycle
from muster.events.decisions import AttemptEnded, InstanceBound, InstanceEnded, JobRejected, JobsForgotten
from muster.events.jobs import GroupRequest, JobRequest, JobSubmitted
from muster.gateway.shown import job_row
from tests.golden.recorded import LOGS, MUST_FAIL, names, read

STORIES = [name for name in names(LOGS) if name != MUST_FAIL and not name.startswith("openb")]


@pytest.mark.parametrize("name", STORIES)
def test_each_job_is_told_in_the_state_in_which_the_cell_has_it(name: str) -> None:
    records = [decode_cycle(data) for data in read(LOGS, name)]
    state = State(records[0].cell)
    lives: dict[str, Life] = {}
    for cycle in records:
        apply(state, cycle)
        for event in (*cycle.inputs, *cycle.decisions):
            if isinstance(event, JobSubmitted) and event.job not in lives:
                lives[event.job] = Life(event.job)
            for job in dict.fromkeys([getattr(event, "job", ""), getattr(event, "by_job", "")]):
                if job in lives:
                    lives[job].take(Entry(cycle=cycle.number, at_us=cycle.at_us, event=event))
            if isinstance(event, JobsForgotten):
                for job in event.jobs:
                    del lives[job]
        for job in state.jobs.values():
            row, life = job_row(job), lives[job.id]
            assert (cycle.number, job.id, life.state) == (cycle.number, job.id, row.state)
            if life.over:
                outcome = life.outcome()
                assert (outcome.code, outcome.reason) == (row.code, row.reason)
    assert lives


def submitted(array: int | None = None) -> JobSubmitted:
    request = JobRequest(groups=(GroupRequest(),), array=array)
    return JobSubmitted(job="j", name="n", user="u", request=request)


def told(life: Life, *events: Event) -> list[str]:
    """The states that these entries lead to."""
    return [life.take(Entry(cycle=number, at_us=0, event=event)).state for number, event in enumerate(events, 1)]


def test_what_is_told_twice_or_of_another_job_or_too_late_changes_nothing() -> None:
    bound = InstanceBound(job="j", instance=0, attempt=1, placements=())
    end = AttemptEnded(job="j", instance=0, attempt=1, then="failed", reason="member-failed", code=3)
    other = InstanceEnded(job="k", instance=0, outcome="finished")
    life = Life("j")
    assert told(life, submitted(), submitted(), bound, other, end, end, bound, submitted()) == [
        "pending",
        "pending",
        "starting",
        "starting",
        *["failed"] * 4,
    ]
    assert (life.outcome().code, life.outcome().reason, life.outcome().finished) == (3, "member-failed", False)


def test_an_array_is_over_when_each_of_its_instances_is() -> None:
    life = Life("j")
    ends = [AttemptEnded(job="j", instance=index, attempt=1, then="finished") for index in range(3)]
    assert told(life, submitted(3), *ends) == ["pending", "pending", "pending", "finished"]
    assert life.outcome().finished
    assert life.outcome().cycle == 4


def test_before_it_was_seen_submitted_nothing_is_known_of_a_job() -> None:
    life = Life("j")
    assert told(life, JobRejected(job="j", reason="no")) == ["unknown"]
    assert not life.over
    assert "unknown" not in OVER


def test_an_id_says_when_it_was_made() -> None:
    first, second = new_id(), new_id()
    assert first != second
    assert (made_ms(second) or 0) - (made_ms(first) or 0) in range(1000)
    assert made_ms("0190a5b6-7c3d-7e4f-8a9b-0123456789ab") == 0x0190A5B67C3D
    assert [made_ms(id) for id in ("train-1", "0190a5b6-7c3d-4e4f-8a9b-0123456789ab", "x" * 14 + "7" + "y" * 21)] == [None] * 3
