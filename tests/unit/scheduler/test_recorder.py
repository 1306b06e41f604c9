"""What the recorder makes of messages."""

import pytest

from muster.events.codec import digest
from muster.events.jobs import JobCancelRequested, JobSubmitted
from muster.events.nodes import NodeRegistered, NodesHeard, TaskExited
from muster.events.operations import InputRefused, NodeCordoned, Policy, PolicySet, Weight
from muster.log.admit import Admitted
from muster.scheduler.core import BufferFull, Core, Message, UnknownSource
from muster.scheduler.messages import Buffer
from muster.scheduler.recorder import INPUTS_MAX_BYTES
from tests.simulation.small_world import WALL_US, job_id, report, spec, submission
from tests.unit.scheduler.driving import JOBS, NODES, OPERATIONS, Driver

MINUTE_US = 60_000_000


def refusal(driver: Driver) -> InputRefused:
    """The only input of the next cycle, which is a refusal."""
    (event,) = driver.inputs()
    assert isinstance(event, InputRefused)
    return event


def test_a_submission_is_recorded_with_its_own_bytes() -> None:
    driver = Driver()
    data = submission(job_id(1))
    driver.put(JOBS, data)
    assert data in (driver.core.cycle(driver.at_us) or b"")


def test_a_message_that_is_no_entry_is_refused_with_its_place_and_digest() -> None:
    driver = Driver()
    driver.put(JOBS, submission(job_id(1)))
    driver.put(JOBS, b"\xff{", key="someone")
    first, second = driver.inputs()
    assert isinstance(first, JobSubmitted)
    assert isinstance(second, InputRefused)
    assert (second.source, second.offset, second.id, second.digest) == (JOBS, 1, "someone", digest(b"\xff{"))
    assert second.reason


def test_a_field_beyond_its_bound_is_refused_by_name() -> None:
    driver = Driver()
    driver.put(JOBS, submission(job_id(1)).replace(b'"gpus":1', b'"gpus":65'))
    assert "gpus" in refusal(driver).reason


def test_a_submission_that_comes_again_makes_no_entry() -> None:
    driver = Driver()
    driver.put(JOBS, submission(job_id(1)))
    driver.put(JOBS, submission(job_id(1)))
    assert len(driver.inputs()) == 1
    driver.put(JOBS, submission(job_id(1)))
    assert driver.inputs() == ()


def test_a_submission_that_comes_again_after_a_restart_makes_no_entry() -> None:
    driver = Driver()
    driver.put(JOBS, submission(job_id(1)))
    driver.turn()
    core = Core("main")
    for data in driver.records:
        assert isinstance(core.follow(data), Admitted)
    again = Driver(core)
    again.offsets = {JOBS: 1}
    again.put(JOBS, submission(job_id(1)))
    assert again.inputs() == ()


def test_a_message_that_is_delivered_again_is_dropped() -> None:
    driver = Driver()
    cancel = JobCancelRequested(job=job_id(1))
    message = driver.put(JOBS, cancel)
    driver.core.offer(message)
    assert driver.inputs() == (cancel,)
    driver.core.offer(message)
    assert driver.inputs() == ()


def test_a_message_below_the_folded_position_is_dropped() -> None:
    driver = Driver()
    for number in range(3):
        driver.put(JOBS, submission(job_id(number)))
    driver.turn()
    core = Core("main")
    for data in driver.records:
        core.follow(data)
    again = Driver(core)
    assert core.positions == {JOBS: 3}
    for offset in range(4):
        core.offer(Message(JOBS, offset, submission(job_id(offset)), WALL_US))
    (event,) = again.inputs()
    assert isinstance(event, JobSubmitted)
    assert event.job == job_id(3)


def test_an_id_that_is_older_than_the_policy_allows_is_refused() -> None:
    driver = Driver()
    late = WALL_US + 31 * MINUTE_US
    driver.put(JOBS, submission(job_id(1, made_us=WALL_US)), appended_us=late)
    assert "old" in refusal(driver).reason
    driver.put(JOBS, submission(job_id(2, made_us=late - 29 * MINUTE_US)), appended_us=late)
    driver.put(JOBS, submission("not-a-uuid"), appended_us=late)
    driver.put(JOBS, submission(job_id(3).replace("-7000-", "-4000-")), appended_us=late)
    assert [type(event) for event in driver.inputs()] == [JobSubmitted] * 3


def test_the_age_of_an_id_follows_the_policy() -> None:
    driver = Driver()
    driver.put(OPERATIONS, PolicySet(policy=Policy(too_old_us=MINUTE_US)))
    driver.turn()
    driver.put(JOBS, submission(job_id(1)), appended_us=WALL_US + 2 * MINUTE_US)
    assert "60 s" in refusal(driver).reason


@pytest.mark.parametrize(
    ("source", "event"),
    [
        (JOBS, NodeCordoned(node="n1")),
        (JOBS, TaskExited(job="a", instance=0, attempt=1, rank=0)),
        (OPERATIONS, JobCancelRequested(job="a")),
        (NODES, NodesHeard()),
        (JOBS, InputRefused(source="x", reason="y")),
        ("muster.gpu-health/0", NodeCordoned(node="n1")),
    ],
)
def test_an_input_that_does_not_come_by_this_topic_is_refused(source: str, event: NodeCordoned) -> None:
    driver = Driver()
    driver.put(source, event)
    assert type(event).__name__ in refusal(driver).reason


@pytest.mark.parametrize("policy", [Policy(filters=("ready", "nothing")), Policy(scores=(Weight(name="nothing"),))])
def test_a_policy_that_names_an_unknown_plugin_is_refused_and_the_old_one_stays(policy: Policy) -> None:
    driver = Driver()
    driver.put(OPERATIONS, PolicySet(policy=policy))
    assert "'nothing' does not exist; there are " in refusal(driver).reason
    assert driver.core.state.policy == Policy()


def test_a_message_under_the_key_of_another_job_is_refused() -> None:
    driver = Driver()
    driver.put(JOBS, JobCancelRequested(job=job_id(1)), key=job_id(2))
    assert job_id(1) in refusal(driver).reason


def test_a_topic_that_is_no_input_is_an_error_of_the_adapter() -> None:
    with pytest.raises(UnknownSource, match=r"other\.topic"):
        Driver().put("other.topic/0", b"")


def test_positions_move_by_exactly_what_was_taken() -> None:
    driver = Driver()
    driver.put(OPERATIONS, PolicySet(policy=Policy(inputs_max=3)))
    driver.turn()
    for number in range(7):
        driver.put(JOBS, submission(job_id(number)))
    taken = []
    while (cycle := driver.turn()) is not None and cycle.inputs:
        assert cycle.positions == {JOBS: driver.core.positions[JOBS]}
        taken.append((len(cycle.inputs), cycle.positions[JOBS]))
    assert taken == [(3, 3), (3, 6), (1, 7)]


def test_a_cycle_holds_at_most_four_mebibytes_of_inputs() -> None:
    driver = Driver()
    environment = b'"environment":{"KEY":"' + b"x" * 60_000 + b'"}'
    for number in range(100):
        driver.put(JOBS, submission(job_id(number)).replace(b'"environment":{}', environment))
    sizes = []
    while (data := driver.core.cycle(driver.at_us)) is not None:
        driver.core.read_back(data)
        sizes.append(len(data))
    assert driver.core.positions == {JOBS: 100}
    assert len(sizes) == 2
    assert INPUTS_MAX_BYTES * 9 // 10 < sizes[0] < INPUTS_MAX_BYTES + 100_000


def test_the_buffer_is_bounded_and_says_so() -> None:
    buffer = Buffer(max_messages=2, max_bytes=10)
    buffer.add(Message(JOBS, 0, b"x" * 100, 0))
    with pytest.raises(BufferFull):
        buffer.add(Message(JOBS, 1, b"", 0))
    buffer.drop(1)
    buffer.add(Message(JOBS, 1, b"", 0))
    buffer.add(Message(NODES, 0, b"", 0))
    assert (len(buffer), buffer.reports, buffer.ahead) == (2, 1, {JOBS: 2, NODES: 1})
    with pytest.raises(BufferFull):
        buffer.add(Message(JOBS, 2, b"", 0))


def test_what_says_nothing_new_makes_no_record_and_its_position_goes_with_the_next() -> None:
    driver = Driver()
    driver.put(JOBS, submission(job_id(1)))
    driver.turn()
    driver.put(JOBS, submission(job_id(1)))
    assert driver.turn() is None
    assert driver.core.taken() == {JOBS: 2}
    assert driver.core.positions == {JOBS: 1}
    driver.put(OPERATIONS, NodeCordoned(node="n1"))
    cycle = driver.turn()
    assert cycle is not None
    assert cycle.positions == {JOBS: 2, OPERATIONS: 1}


def test_a_node_may_be_registered_by_an_entry_and_its_report_in_the_same_cycle_waits() -> None:
    driver = Driver()
    driver.put(NODES, NodeRegistered(node="n1", uid="n1-uid", boot="boot-1", spec=spec("n1")))
    driver.put(NODES, report("n1", foreign_cpu_milli=5))
    assert [type(event).__name__ for event in driver.inputs()] == ["NodeRegistered"]
    assert [type(event).__name__ for event in driver.inputs()] == ["ForeignUseChanged"]


def test_a_refused_message_is_not_looked_at() -> None:
    driver = Driver()
    data = submission(job_id(1))
    driver.core.refuse(JOBS, 0, digest(data))
    driver.core.refuse(JOBS, 1, digest(b"another message"))
    driver.put(JOBS, data)
    driver.put(JOBS, submission(job_id(2)))
    first, second = driver.inputs()
    assert isinstance(first, InputRefused)
    assert "three times" in first.reason
    assert isinstance(second, JobSubmitted), "another message now stands at that offset"
