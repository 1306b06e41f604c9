"""What the recorder makes of words about queues: those of one cycle are taken together, and what cannot be said is refused."""

from muster.events.operations import InputRefused
from muster.events.queues import Amounts, QueueRemoved, QueueSet
from tests.unit.scheduler.driving import OPERATIONS, Driver


def test_a_queue_may_name_a_parent_of_its_own_cycle() -> None:
    driver = Driver()
    driver.put(OPERATIONS, QueueSet(queue="team"), key="queues")
    driver.put(OPERATIONS, QueueSet(queue="red", parent="team"), key="queues")
    assert [type(event) for event in driver.inputs()] == [QueueSet, QueueSet]
    assert driver.core.state.tree is not None
    assert sorted(driver.core.state.tree.said) == ["red", "team"]


def test_what_cannot_be_said_is_refused_in_one_sentence_and_changes_nothing() -> None:
    driver = Driver()
    driver.put(OPERATIONS, QueueSet(queue="a"))
    driver.put(OPERATIONS, QueueSet(queue="b", parent="a"))
    driver.put(OPERATIONS, QueueSet(queue="a", parent="b"))
    driver.put(OPERATIONS, QueueSet(queue="c", parent="d"))
    driver.put(OPERATIONS, QueueRemoved(queue="a"))
    driver.put(OPERATIONS, QueueRemoved(queue="b"))
    driver.put(OPERATIONS, QueueRemoved(queue="a"))
    found = driver.inputs()
    assert [event.reason for event in found if isinstance(event, InputRefused)] == [
        "parent: a below b below a is a circle",
        "parent: there is no queue 'd'; set it first",
        "queue: a has b below it: remove these first",
    ]
    assert driver.core.state.tree is not None
    assert driver.core.state.tree.said == {}


def test_what_is_wrong_with_a_queue_by_itself_is_refused_at_the_edge() -> None:
    driver = Driver()
    driver.put(OPERATIONS, QueueSet(queue="a", parent="a"))
    driver.put(OPERATIONS, QueueSet(queue="a", parent="A/b"))
    driver.put(OPERATIONS, QueueSet(queue="a", users=("ada", "ada")))
    driver.put(OPERATIONS, QueueSet(queue="a", borrow=Amounts(jobs=1)))
    promised = Amounts(gpu_milli_by_model={"H100": 2000})
    driver.put(OPERATIONS, QueueSet(queue="a", guarantee=promised, limit=Amounts(gpu_milli_by_model={"H100": 1000})))
    driver.put(OPERATIONS, QueueSet(queue="a", guarantee=Amounts(cpu_milli=1), lend=Amounts(cpu_milli=2)))
    assert [event.reason for event in driver.inputs() if isinstance(event, InputRefused)] == [
        "parent: a cannot stand below itself",
        "parent: 'A/b' is no name",
        "users: one user stands twice",
        "borrow.jobs: only limits count jobs",
        "guarantee.gpu_milli_by_model[H100] is 2000, more than limit.gpu_milli_by_model[H100], which is 1000",
        "lend.cpu_milli is 2, more than guarantee.cpu_milli, which is 1",
    ]


def test_a_queue_that_was_removed_may_be_set_again_in_a_later_cycle() -> None:
    driver = Driver()
    driver.put(OPERATIONS, QueueSet(queue="a"))
    driver.turn()
    driver.put(OPERATIONS, QueueRemoved(queue="a"))
    driver.turn()
    driver.put(OPERATIONS, QueueSet(queue="a", weight=3))
    driver.turn()
    assert driver.core.state.tree is not None
    assert driver.core.state.tree.of("a").weight == 3
