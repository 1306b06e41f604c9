"""Who waits stands in classes, and inside a class in the order of submission."""

from muster.cluster.jobs import Instance, Job, job_of
from muster.cluster.queues import PendingQueue
from muster.cluster.shapes import intern_gang
from muster.events.jobs import JobRun
from tests.support.build import group, job


def waiting(id: str, place: tuple[int, int], priority: int = 0, gpus: int = 1, array: int | None = None) -> Job:
    request = job(id, group(gpus=gpus), priority=priority, array=array).request
    return job_of(id, "n", "u", "default", request, JobRun(), intern_gang(request), place, 0)


def one(id: str, place: tuple[int, int], priority: int = 0, gpus: int = 1) -> Instance:
    return waiting(id, place, priority, gpus).instances[0]


def test_equals_are_one_class_and_go_by_place_whatever_their_ids() -> None:
    queue = PendingQueue()
    second, first = one("a", (2, 0)), one("z", (1, 5))
    queue.add(second, alone=False)
    queue.add(first, alone=False)
    assert len(queue.classes) == 1
    (only,) = queue.classes.values()
    assert only.head() is first
    queue.discard(first)
    assert only.head() is second


def test_priority_shape_avoided_nodes_and_a_nomination_part_classes() -> None:
    queue = PendingQueue()
    for instance in (one("a", (1, 0)), one("b", (1, 1), priority=1), one("c", (1, 2), gpus=2)):
        queue.add(instance, alone=False)
    avoiding = one("d", (1, 3))
    avoiding.job.avoid = ("uid",)
    queue.add(avoiding, alone=False)
    queue.add(one("e", (1, 4)), alone=True)
    assert queue.count == 5
    assert sum(found.count for found in queue.classes.values()) == 5
    assert len([found for found in queue.classes.values() if found.count]) == 5


def test_a_requeued_instance_keeps_its_place() -> None:
    queue = PendingQueue()
    first, second = one("a", (1, 0)), one("b", (1, 1))
    queue.add(first, alone=False)
    queue.add(second, alone=False)
    queue.discard(first)
    queue.add(first, alone=False)
    (only,) = [found for found in queue.classes.values() if found.count]
    assert only.head() is first


def test_elements_of_an_array_go_in_their_order() -> None:
    queue = PendingQueue()
    elements = waiting("a", (1, 0), array=3).instances
    for instance in reversed(elements):
        queue.add(instance, alone=False)
    (only,) = queue.classes.values()
    order = []
    while (head := only.head()) is not None:
        order.append(head.index)
        queue.discard(head)
    assert order == [0, 1, 2]
    assert queue.count == 0


def test_to_discard_what_does_not_wait_changes_nothing() -> None:
    queue = PendingQueue()
    queue.discard(one("a", (1, 0)))
    assert queue.count == 0


def test_who_comes_and_goes_leaves_no_endless_notes_behind() -> None:
    queue = PendingQueue()
    first, second = one("a", (1, 0)), one("b", (1, 1))
    queue.add(first, alone=False)
    for _ in range(1000):
        queue.add(second, alone=False)
        queue.discard(second)
    queue.add(second, alone=False)
    (only,) = queue.classes.values()
    assert len(only.heap) <= 66
    assert only.places() == {(1, 0, 0): first, (1, 1, 0): second}
    assert only.head() is first
