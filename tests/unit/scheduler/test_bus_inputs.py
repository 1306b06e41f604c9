"""What comes by the bus and is no input: a leader's beat; and an operator's word that messages are lost."""

from muster.events.codec import decode_cycle, decode_envelope, encode_entry
from muster.events.operations import Loss, LossAccepted
from muster.log.admit import Admitted
from muster.replay.audit import audit
from muster.scheduler.core import POSITIONS_US, Core
from muster.scheduler.messages import BEAT
from muster.verify import Judge
from tests.simulation.small_world import job_id, submission
from tests.unit.scheduler.driving import JOBS, NODES, SECOND, Driver


def test_a_leaders_beat_makes_no_entry_and_moves_the_position() -> None:
    driver = Driver()
    driver.put(NODES, BEAT)
    driver.put(NODES, BEAT)
    assert driver.turn() is None
    assert driver.core.taken() == {NODES: 2}


def test_after_ten_quiet_minutes_a_cycle_is_made_for_the_positions_alone() -> None:
    driver = Driver()
    driver.put(NODES, BEAT)
    assert driver.turn(after_s=POSITIONS_US // SECOND - 1) is None
    cycle = driver.turn(after_s=1)
    assert cycle is not None
    assert (cycle.inputs, cycle.decisions, cycle.positions) == ((), (), {NODES: 1})
    assert driver.turn(after_s=2 * POSITIONS_US // SECOND) is None
    _assert_sound(driver)


def test_an_accepted_loss_moves_the_positions_and_reading_goes_on_there() -> None:
    driver = Driver()
    driver.put(JOBS, submission(job_id(1)))
    driver.turn()
    event = LossAccepted(lost=(Loss(source=JOBS, position=1, resumed=7), Loss(source=NODES, position=0, resumed=3)), by="ada")
    data = driver.core.accept_loss(driver.at_us, event)
    driver.records.append(data)
    driver.core.read_back(data)
    assert driver.core.positions == {JOBS: 7, NODES: 3}
    assert encode_entry(event) in data
    driver.offsets[JOBS] = 7
    driver.put(JOBS, submission(job_id(2)))
    assert len(driver.inputs()) == 1
    _assert_sound(driver)


def test_positions_may_go_back_where_a_topic_was_made_anew() -> None:
    driver = Driver()
    driver.offsets[JOBS] = 9
    driver.put(JOBS, submission(job_id(1)))
    driver.turn()
    assert driver.core.positions == {JOBS: 10}
    data = driver.core.accept_loss(driver.at_us, LossAccepted(lost=(Loss(source=JOBS, position=10, resumed=0),)))
    driver.records.append(data)
    driver.core.read_back(data)
    driver.offsets[JOBS] = 0
    driver.put(JOBS, submission(job_id(2)))
    assert len(driver.inputs()) == 1
    _assert_sound(driver)


def _assert_sound(driver: Driver) -> None:
    """Whoever follows the same records comes to the same state, audit finds nothing, and everything was legal."""
    follower = Core("main")
    judge = Judge()
    for data in driver.records:
        assert isinstance(follower.follow(data), Admitted)
        judge.judge(decode_cycle(data))
    assert follower.positions == driver.core.positions
    assert judge.violations == []
    assert audit(lambda: [(decode_envelope(data), data) for data in driver.records]).difference is None
