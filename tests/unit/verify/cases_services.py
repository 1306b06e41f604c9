"""Cases of the rule about services."""

from muster.events.decisions import AttemptEnded, InstanceEnded, InstanceStarted, StopOrdered
from muster.events.jobs import GroupRequest, JobCancelRequested, JobRequest, JobRevised
from muster.events.nodes import TaskExited, TaskReady
from muster.events.services import (
    Autoscale,
    JobMetricReported,
    JobScaleRequested,
    ReplicaOpened,
    ReplicasDecided,
    RevisionAccepted,
    RollFinished,
    RollStopped,
    Service,
)
from tests.unit.verify.story import S, Story, at, bound, case, ended


def _service(replicas: int = 2, **says: object) -> Story:
    """A service whose replicas run, each with a GPU of a node that has four."""
    story = Story().node("n1", devices=4).submit("s", service=Service(replicas=replicas, **says))  # type: ignore[arg-type]
    for index in range(replicas):
        story.bind("s", at(0, 0, index), instance=index)
        ready = TaskReady(job="s", instance=index, attempt=1, rank=0)
        story.add(ready, then=(InstanceStarted(job="s", instance=index, attempt=1),))
    return story


def _revised(replicas: int = 2, **says: object) -> Story:
    """The same, revised: a roll begins."""
    service = Service(replicas=replicas, **says)  # type: ignore[arg-type]
    revised = JobRevised(job="s", request=JobRequest(groups=(GroupRequest(gpus=1, cpu_milli=1),), service=service))
    return _service(replicas, **says).add(revised, then=(RevisionAccepted(job="s", revision=2),))


def _stop(story: Story, index: int, reason: str) -> StopOrdered:
    return StopOrdered(job="s", instance=index, attempt=1, reason=reason, kill_at_us=story.now())  # type: ignore[arg-type]


def _gone(story: Story, index: int, reason: str = "revised") -> Story:
    """Told to go, and gone."""
    story.add(then=(_stop(story, index, reason),))
    exited = TaskExited(job="s", instance=index, attempt=1, rank=0, code=0)
    then = AttemptEnded(job="s", instance=index, attempt=1, then="cancelled", reason=reason)
    return story.add(exited, then=(then,))


@case("service")
def a_replica_that_ended_is_kept(bad: bool) -> Story:
    then = ended("s", "finished" if bad else "pending", reason="finished")
    return _service().add(TaskExited(job="s", instance=0, attempt=1, rank=0, code=0), then=(then,))


@case("service")
def a_replica_goes_only_where_there_are_too_many(bad: bool) -> Story:
    story = _service().add(JobScaleRequested(job="s", replicas=2 if bad else 1))
    return story.add(then=(_stop(story, 1, "scaled"),))


@case("service")
def there_are_no_more_replicas_than_may_be(bad: bool) -> Story:
    story = _service().add(JobScaleRequested(job="s", replicas=2 if bad else 3))
    return story.add(then=(ReplicaOpened(job="s", instance=2, revision=1),))


@case("service")
def no_more_of_them_hold_places_than_may(bad: bool) -> Story:
    story = _service().add(JobScaleRequested(job="s", replicas=3), then=(ReplicaOpened(job="s", instance=2, revision=1),))
    if bad:
        story.add(JobScaleRequested(job="s", replicas=2))
    return story.add(then=(bound("s", at(0, 0, 3), instance=2),))


@case("service")
def what_waits_is_wanted_until_there_are_too_many(bad: bool) -> Story:
    story = Story().submit("s", service=Service(replicas=2)).add(JobScaleRequested(job="s", replicas=2 if bad else 1))
    return story.add(then=(InstanceEnded(job="s", instance=1, outcome="cancelled", reason="scaled"),))


@case("service")
def a_roll_leaves_enough_up(bad: bool) -> Story:
    story = _revised(3, max_unavailable=1 if bad else 2)
    return story.add(then=(_stop(story, 2, "revised"), _stop(story, 1, "revised")))


@case("service")
def the_next_goes_when_the_new_one_has_settled(bad: bool) -> Story:
    story = _gone(_revised(2, settle_us=60 * S).wait(120), 1).add(then=(ReplicaOpened(job="s", instance=1, revision=2),))
    story.bind("s", at(0, 0, 1), instance=1, attempt=2)
    story.add(TaskReady(job="s", instance=1, attempt=2, rank=0), then=(InstanceStarted(job="s", instance=1, attempt=2),))
    story.wait(0 if bad else 60)
    return story.add(then=(_stop(story, 0, "revised"),))


@case("service")
def only_older_revisions_go_in_a_roll(bad: bool) -> Story:
    story = _service() if bad else _revised()
    return story.add(then=(_stop(story, 0, "revised"),))


def _failed(code: int = 1) -> Story:
    story = _gone(_revised(), 1).add(then=(ReplicaOpened(job="s", instance=1, revision=2),))
    story.bind("s", at(0, 0, 1), instance=1, attempt=2)
    story.add(TaskReady(job="s", instance=1, attempt=2, rank=0), then=(InstanceStarted(job="s", instance=1, attempt=2),))
    if not code:
        return story
    then = AttemptEnded(job="s", instance=1, attempt=2, then="pending", reason="member-failed", charged=True)
    return story.add(TaskExited(job="s", instance=1, attempt=2, rank=0, code=code), then=(then,))


@case("service")
def a_roll_stops_where_a_replica_of_it_failed(bad: bool) -> Story:
    stopped = RollStopped(job="s", revision=2, instance=1, reason="member-failed")
    return _failed(0 if bad else 1).add(then=(stopped,))


@case("service")
def a_roll_that_failed_goes_no_further(bad: bool) -> Story:
    story = _failed(1 if bad else 0)
    return story.add(then=(_stop(story, 0, "revised"),))


@case("service")
def a_roll_is_finished_when_all_are_of_it(bad: bool) -> Story:
    story = _failed(0)
    if not bad:
        _gone(story, 0).add(then=(ReplicaOpened(job="s", instance=0, revision=2),))
        story.bind("s", at(0, 0, 0), attempt=2)
        story.add(TaskReady(job="s", instance=0, attempt=2, rank=0), then=(InstanceStarted(job="s", instance=0, attempt=2),))
    return story.add(then=(RollFinished(job="s", revision=2),))


@case("service")
def revisions_follow_each_other(bad: bool) -> Story:
    revised = JobRevised(job="s", request=JobRequest(groups=(GroupRequest(gpus=2),), service=Service(replicas=2)))
    return _service().add(revised, then=(RevisionAccepted(job="s", revision=1 if bad else 2),))


@case("service")
def the_metric_asks_for_as_many(bad: bool) -> Story:
    story = _service(autoscale=Autoscale(metric="load", target_milli=1000, max=9))
    story.add(JobMetricReported(job="s", value_milli=3500), then=(ReplicasDecided(job="s", replicas=4),))
    story.add(JobMetricReported(job="s", value_milli=1000)).wait(100 if bad else 300)
    return story.add(then=(ReplicasDecided(job="s", replicas=1),))


@case("service")
def a_service_ends_when_it_is_cancelled(bad: bool) -> Story:
    story = _service(1)
    if not bad:
        story.add(JobCancelRequested(job="s"))
    exited = TaskExited(job="s", instance=0, attempt=1, rank=0, code=0)
    return story.add(exited, then=(ended("s", "cancelled", reason="cancelled"),))
