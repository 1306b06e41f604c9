"""Cases of the rules about places: gangs, nodes, devices, capacity, nominations, preemption."""

from muster.events.catalogue import CatalogueSet, DeviceModel
from muster.events.decisions import (
    InstanceEnded,
    NodeReleased,
    NodeReturned,
    NodeSilent,
)
from muster.events.jobs import (
    GroupRequest,
    JobCancelRequested,
    JobReprioritised,
    Requirement,
    Toleration,
)
from muster.events.nodes import (
    Device,
    DeviceHealthChanged,
    ForeignUseChanged,
    NodeRegistered,
    NodeRemoved,
    NodesHeard,
    NodeSpec,
    Taint,
)
from muster.events.operations import (
    NodeCordoned,
    NodeDrained,
    NodeFenced,
    NodeUncordoned,
    Policy,
    PolicySet,
)
from tests.unit.verify.story import (
    GANG,
    S,
    Story,
    at,
    bound,
    case,
    cpu,
    ended,
    exited,
    kept,
    nominated,
    nominated_story,
    preempted,
    quarantined_story,
    stop,
)

# Gangs


@case("gang")
def a_gang_is_bound_with_its_minimum(bad: bool) -> Story:
    story = Story().node("a").submit("j", *GANG)
    return story.bind("j", *[at(rank, 0) for rank in ((0, 1) if bad else (0, 1, 2))])


@case("gang")
def no_rank_is_placed_twice(bad: bool) -> Story:
    return Story().node("a").submit("j", *GANG).bind("j", *[at(rank, 0) for rank in ((0, 1, 2, 2) if bad else (0, 1, 2, 3))])


@case("gang")
def a_rank_is_one_of_the_job(bad: bool) -> Story:
    return Story().node("a").submit("j", cpu(1, count=2)).bind("j", at(0, 0), at(2 if bad else 1, 0))


@case("gang")
def the_ranks_of_a_group_are_its_first_ones(bad: bool) -> Story:
    return Story().node("a").submit("j", *GANG).bind("j", *[at(rank, 0) for rank in ((0, 1, 3) if bad else (0, 1, 2))])


@case("gang")
def a_binding_has_places(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(1, count=3, min=0), cpu(1, name="b"))
    return story.bind("j", *([] if bad else [at(3, 0)]))


# Nodes


@case("node")
def nothing_is_put_where_no_node_is(bad: bool) -> Story:
    return Story().node("a").submit("j").bind("j", at(0, 1 if bad else 0, 0))


@case("node")
def nothing_new_goes_to_a_cordoned_node(bad: bool) -> Story:
    story = Story().node("a").submit("j").add(NodeCordoned(node="a"))
    return (story if bad else story.add(NodeUncordoned(node="a"))).bind("j", at(0, 0, 0))


@case("node")
def nothing_new_goes_to_a_draining_node(bad: bool) -> Story:
    story = Story().node("a").node("b").submit("j").add(NodeDrained(node="a"))
    return story.bind("j", at(0, 0 if bad else 1, 0))


@case("node")
def nothing_new_goes_to_a_fenced_node_before_it_was_booted(bad: bool) -> Story:
    story = Story().node("a").submit("j").add(NodeFenced(node="a")).node("a", boot="b1" if bad else "b2")
    return story.bind("j", at(0, 0, 0))


@case("node")
def nothing_new_goes_to_a_silent_node(bad: bool) -> Story:
    story = Story().node("a").submit("j").wait(30).add(NodesHeard(missing=(0,)), then=(NodeSilent(node="a", row=0),))
    if not bad:
        story.add(NodesHeard(), then=(NodeReturned(node="a", row=0),))
    return story.bind("j", at(0, 0, 0))


@case("node")
def nothing_new_goes_to_a_node_in_quarantine(bad: bool) -> Story:
    story = quarantined_story()
    if not bad:
        story.wait(100).add(then=(NodeReleased(node="a", row=0),))
    return story.submit("j").bind("j", at(0, 0, 0))


@case("node")
def a_taint_is_tolerated(bad: bool) -> Story:
    story = Story().node("a", taints=(Taint(key="k", value="v"), Taint(key="soft", effect="PreferNoSchedule")))
    return story.submit("j", GroupRequest(gpus=1, tolerations=(Toleration(key="k", value="w" if bad else "v"),))).bind(
        "j", at(0, 0, 0)
    )


@case("node")
def a_toleration_of_everything_is_one_of_every_effect(bad: bool) -> Story:
    story = Story().node("a", taints=(Taint(key="k", value="v", effect="NoExecute"),))
    one = Toleration(any_value=True, effect="NoSchedule" if bad else "")
    return story.submit("j", GroupRequest(gpus=1, tolerations=(one,))).bind("j", at(0, 0, 0))


@case("node")
def a_job_is_not_put_again_where_it_failed(bad: bool) -> Story:
    story = Story().node("a").node("b").submit("j").bind("j", at(0, 0, 0))
    story.add(exited("j", code=1, blame="node"), then=(ended("j", "pending", reason="start-failed", avoid="uid-a"),))
    return story.bind("j", at(0, 0 if bad else 1, 0), attempt=2)


# Devices


@case("device")
def a_task_gets_as_many_devices_as_it_asks_for(bad: bool) -> Story:
    return Story().node("a").submit("j", GroupRequest(gpus=2)).bind("j", at(0, 0, *((0,) if bad else (0, 1))))


@case("node")
def one_of_the_alternatives_is_met(bad: bool) -> Story:
    terms = ((Requirement(key="k", values=("x",)),), (Requirement(key="k", values=("y",)), Requirement(key="m", op="Exists")))
    story = Story().node("a", labels={"k": "y"} if bad else {"k": "y", "m": ""})
    return story.submit("j", GroupRequest(gpus=1, any_of=terms)).bind("j", at(0, 0, 0))


@case("device")
def a_model_can_do_what_is_asked(bad: bool) -> Story:
    models = tuple(
        DeviceModel(model="H100", capability=90, bandwidth_gbs=bandwidth, memory_mib=memory)
        for memory, bandwidth in ((500, 1000), (1000, 2000 if bad else 3000))
    )
    asked = GroupRequest(gpus=1, gpu_bandwidth=3000, gpu_memory_mib=800)
    return Story().add(CatalogueSet(models=models)).node("a").submit("j", asked).bind("j", at(0, 0, 0))


@case("device")
def a_share_is_of_one_device(bad: bool) -> Story:
    return Story().node("a").submit("j", GroupRequest(gpu_milli=500)).bind("j", at(0, 0, *((0, 1) if bad else (0,))))


@case("device")
def no_device_is_given_twice_to_a_task(bad: bool) -> Story:
    return Story().node("a").submit("j", GroupRequest(gpus=2)).bind("j", at(0, 0, 0, 0 if bad else 1))


@case("device")
def a_device_is_healthy(bad: bool) -> Story:
    story = Story().node("a").submit("j")
    story.add(DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="degraded"))
    return story.bind("j", at(0, 0, 0 if bad else 1))


@case("device")
def an_index_means_one_device_for_ever(bad: bool) -> Story:
    story = Story().node("a").submit("j")
    devices = tuple(Device(uuid=uuid, model="H100", memory_mib=1000) for uuid in ("a-1", "new"))
    story.node("a", devices=2).add(
        NodeRegistered(node="a", uid="uid-a", boot="b1", spec=NodeSpec(cpu_milli=8000, memory_mib=8000, devices=devices))
    )
    story.add(DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="healthy"))
    return story.bind("j", at(0, 0, 0 if bad else 2))


def _sliced(*profiles: str) -> Story:
    """A node with slices of one GPU, and a whole one behind them."""
    cut = [Device(uuid=f"m{at}", model="H100", memory_mib=1000, profile=each, card="c") for at, each in enumerate(profiles)]
    devices = (*cut, Device(uuid="w", model="H100", memory_mib=1000))
    spec = NodeSpec(cpu_milli=8000, memory_mib=8000, disk_mib=8000, devices=devices)
    return Story().add(NodeRegistered(node="a", uid="uid-a", boot="b1", spec=spec))


@case("device")
def a_slice_is_of_the_profile_that_was_asked_for(bad: bool) -> Story:
    asked = GroupRequest(gpus=2, gpu_profile="4g.40gb" if bad else "3g.40gb")
    return _sliced("3g.40gb", "3g.40gb").submit("j", asked).bind("j", at(0, 0, 0, 1))


@case("device")
def a_whole_device_is_no_slice(bad: bool) -> Story:
    return _sliced("7g.80gb").submit("j").bind("j", at(0, 0, 0 if bad else 1))


@case("device")
def a_device_is_of_a_model_that_was_asked_for(bad: bool) -> Story:
    story = Story().node("a").submit("j", GroupRequest(gpus=1, gpu_models=("A100",) if bad else ("A100", "H100")))
    return story.bind("j", at(0, 0, 0))


@case("device")
def a_device_has_the_memory_that_was_asked_for(bad: bool) -> Story:
    return Story().node("a").submit("j", GroupRequest(gpus=1, gpu_memory_mib=1001 if bad else 1000)).bind("j", at(0, 0, 0))


# Capacity


@case("capacity")
def a_whole_device_is_nobody_elses(bad: bool) -> Story:
    story = Story().node("a").submit("j").submit("k", GroupRequest(gpu_milli=1))
    return story.bind("j", at(0, 0, 0)).bind("k", at(0, 0, 0 if bad else 1))


@case("capacity")
def a_node_has_no_more_tasks_than_it_takes(bad: bool) -> Story:
    return (
        Story().node("a", tasks_max=2).submit("j", cpu(1, count=3, min=2)).bind("j", *[at(r, 0) for r in range(3 if bad else 2)])
    )


@case("capacity")
def foreign_use_is_left_alone(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(5000)).submit("k")
    story.add(ForeignUseChanged(node="a", uid="uid-a", cpu_milli=3001 if bad else 3000, devices=("a-0",)))
    return story.bind("k", at(0, 0, 1)).bind("j", at(0, 0))


@case("capacity")
def a_foreign_device_is_left_alone(bad: bool) -> Story:
    story = Story().node("a").submit("j").add(ForeignUseChanged(node="a", uid="uid-a", devices=("a-0",)))
    return story.bind("j", at(0, 0, 0 if bad else 1))


@case("capacity")
def what_is_held_until_the_exit_is_read_is_held(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("j").submit("k").run("j", at(0, 0, 0)).add(JobCancelRequested(job="j"))
    story.add(then=(stop("j", "cancelled", story.now(5)),))
    if not bad:
        story.add(exited("j", code=-15), then=(ended("j", "cancelled"),))
    return story.bind("k", at(0, 0, 0))


@case("capacity")
def a_node_that_shrank_under_its_tasks_takes_none_of_what_it_lacks(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(6000)).submit("k", cpu(1 if bad else 0, gpus=1)).bind("j", at(0, 0))
    return story.node("a", cpu_milli=4000).bind("k", at(0, 0, 0))


# Nominations and preemption


@case("nomination")
def what_is_kept_is_not_given_to_a_lower_job(bad: bool) -> Story:
    story = nominated_story().submit("mid", priority=5)
    story.add(exited("low", code=-9), then=(ended("low", "pending", reason="preempted"),))
    return story.bind("mid", at(0, 0 if bad else 1, 0))


@case("nomination")
def what_is_kept_may_be_taken_by_a_higher_job(bad: bool) -> Story:
    story = nominated_story().submit("top", priority=6, queue="other" if bad else "default")
    story.add(exited("low", code=-9), then=(ended("low", "pending", reason="preempted"),))
    return story.bind("top", at(0, 0, 0))


@case("nomination")
def a_nomination_ends_before_its_instance_is_bound(bad: bool) -> Story:
    story = nominated_story().add(exited("low", code=-9), then=(ended("low", "pending", reason="preempted"),))
    ends = () if bad else (kept("high", "bound"),)
    return story.add(then=(*ends, bound("high", at(0, 0, 0))))


@case("nomination")
def a_nomination_ends_before_its_instance_is_over(bad: bool) -> Story:
    story = nominated_story().add(JobCancelRequested(job="high"))
    ends = () if bad else (kept("high", "cancelled"),)
    return story.add(then=(*ends, InstanceEnded(job="high", instance=0, outcome="cancelled")))


@case("nomination")
def a_deadline_of_a_nomination_has_passed(bad: bool) -> Story:
    return nominated_story(until_s=60).wait(58 if bad else 59).add(then=(kept("high", "deadline"),))


@case("nomination")
def a_gap_of_leadership_moves_the_deadline(bad: bool) -> Story:
    story = nominated_story(until_s=60).lead(gap_us=100 * S)
    return story.wait(0 if bad else 58).add(then=(kept("high", "deadline"),))


@case("nomination")
def a_nomination_ends_with_its_node(bad: bool) -> Story:
    story = nominated_story()
    gone = NodeRemoved(node="b", uid="uid-b") if bad else NodeRemoved(node="a", uid="uid-a")
    ends = () if bad else (ended("low", "pending", reason="node-removed"),)
    return story.add(gone, then=(*ends, kept("high", "node-lost")))


@case("nomination")
def a_nomination_is_taken_by_a_higher_job(bad: bool) -> Story:
    story = nominated_story().submit("top", priority=6).submit("mid", priority=5)
    return story.add(then=(kept("high", "taken", by="mid" if bad else "top"),))


@case("nomination")
def what_is_kept_fits_once_the_victims_are_gone(bad: bool) -> Story:
    story = Story().node("a", devices=2).submit("low", priority=1).submit("firm", priority=1, preemptible=False)
    story.run("low", at(0, 0, 0)).run("firm", at(0, 0, 1)).submit("high", GroupRequest(count=1, gpus=1), priority=5)
    named = nominated("high", (at(0, 0, 1 if bad else 0),), ("low",), story.now(60))
    return story.add(then=(preempted("low", "high", story.now()), named))


@case("preemption")
def only_a_job_that_may_be_preempted_is_a_victim(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1, preemptible=not bad).run("low", at(0, 0, 0))
    story.submit("high", priority=5)
    return story.add(then=(nominated("high", (at(0, 0, 0),), ("low",), story.now(9)), preempted("low", "high", story.now())))


@case("preemption")
def a_victim_is_of_lower_priority(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1).run("low", at(0, 0, 0)).submit("high", priority=5)
    story.add(JobReprioritised(job="low", priority=5 if bad else 4))
    return story.add(then=(nominated("high", (at(0, 0, 0),), ("low",), story.now(9)), preempted("low", "high", story.now())))


@case("preemption")
def there_is_no_priority_across_queues(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1).run("low", at(0, 0, 0))
    story.submit("high", priority=5, queue="other" if bad else "default")
    return story.add(then=(nominated("high", (at(0, 0, 0),), ("low",), story.now(9)), preempted("low", "high", story.now())))


@case("preemption")
def a_policy_can_forbid_it(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1).run("low", at(0, 0, 0)).submit("high", priority=5)
    story.add(PolicySet(policy=Policy(preemption=not bad)))
    return story.add(then=(nominated("high", (at(0, 0, 0),), ("low",), story.now(9)), preempted("low", "high", story.now())))


@case("preemption")
def a_victim_ran_for_its_least_time(bad: bool) -> Story:
    story = Story().node("a", devices=1).add(PolicySet(policy=Policy(min_runtime_us=10 * S)))
    story.submit("low", priority=1).run("low", at(0, 0, 0)).submit("high", priority=5).wait(7 if bad else 8)
    return story.add(then=(nominated("high", (at(0, 0, 0),), ("low",), story.now(9)), preempted("low", "high", story.now())))


@case("preemption")
def a_victim_has_its_grace(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1, grace_us=10 * S).run("low", at(0, 0, 0))
    story.submit("high", priority=5)
    told = preempted("low", "high", story.now(9 if bad else 10))
    return story.add(then=(nominated("high", (at(0, 0, 0),), ("low",), story.now(60)), told))


@case("preemption")
def a_victim_makes_room_for_somebody(bad: bool) -> Story:
    story = Story().node("a", devices=1).submit("low", priority=1).run("low", at(0, 0, 0)).submit("high", priority=5)
    told = (preempted("low", "high", story.now()),)
    return story.add(then=told if bad else (*told, nominated("high", (at(0, 0, 0),), ("low",), story.now(60))))


@case("preemption")
def a_victim_is_told_once(bad: bool) -> Story:
    story = nominated_story(grace_s=30)
    if bad:
        story.submit("top", priority=9)
        story.add(then=(preempted("low", "top", story.now(30)), nominated("top", (at(0, 0, 0),), ("low",), story.now(60))))
    return story


@case("minimal")
def no_victim_is_one_too_many(bad: bool) -> Story:
    story = Story().node("a", devices=2).submit("one", priority=1).submit("two", priority=1)
    story.run("one", at(0, 0, 0)).run("two", at(0, 0, 1)).submit("high", GroupRequest(gpus=1 if bad else 2), priority=5)
    places = (at(0, 0, *((0,) if bad else (0, 1))),)
    told = (preempted("one", "high", story.now()), preempted("two", "high", story.now()))
    return story.add(then=(nominated("high", places, ("one", "two"), story.now(60)), *told))


@case("minimal")
def a_victim_is_needed_on_one_of_the_nodes_at_least(bad: bool) -> Story:
    story = Story().node("a", devices=1).node("b", devices=1).node("c", devices=2)
    story.submit("wide", GroupRequest(gpus=1, count=2), priority=1).run("wide", at(0, 0, 0), at(1, 1, 0))
    story.submit("high", priority=5)
    places = (at(0, 2, 1),) if bad else (at(0, 1, 0),)
    return story.add(then=(nominated("high", places, ("wide",), story.now(60)), preempted("wide", "high", story.now())))
