"""Cases of the rule about constraints: each thing that a job may ask of all its places together, kept and broken."""

from typing import Any

from msgspec import UNSET

from muster.events.jobs import Constraints, GroupRequest, JobTerm, Licences, Requirement, Spread, Toleration, Within
from muster.events.nodes import Device, NodeRegistered, NodeSpec, Taint
from muster.events.operations import LicencesSet
from tests.unit.verify.story import Story, at, case, cpu, ended, exited, nominated, preempted, stop

NOISY = (Requirement(key="app", values=("noisy",)),)


def racks(*names: str, **spec: Any) -> Story:
    """A node in each of these racks, in the rows 0, 1, 2 ..."""
    story = Story()
    for row, rack in enumerate(names):
        story.node(f"n{row}", rack=rack, **spec)
    return story


@case("constraint")
def a_gang_stays_within_its_rack(bad: bool) -> Story:
    within = Constraints(within=(Within(level="rack"),))
    return racks("r1", "r1", "r10").submit("j", cpu(1, count=2, min=2), constraints=within).bind("j", at(0, 0), at(1, 1 + bad))


@case("constraint")
def a_node_without_a_rack_is_in_none(bad: bool) -> Story:
    within = Constraints(within=(Within(level="rack"),))
    return racks("" if bad else "r1", "r2").submit("j", cpu(1), constraints=within).bind("j", at(0, 0))


@case("constraint")
def no_more_of_a_gang_are_in_one_rack_than_it_allows(bad: bool) -> Story:
    spread = Constraints(spread=(Spread(level="rack", most=1),))
    return racks("r1", "r1", "r2").submit("j", cpu(1, count=2, min=2), constraints=spread).bind("j", at(0, 0), at(1, 2 - bad))


@case("constraint")
def no_domain_is_further_ahead_than_the_skew(bad: bool) -> Story:
    spread = Constraints(spread=(Spread(level="node", skew=1),))
    places = [at(rank, 0 if rank < 2 + bad else 1) for rank in range(4)]
    return racks("", "").submit("j", cpu(1, count=4, min=4), constraints=spread).bind("j", *places)


@case("constraint")
def a_job_is_near_those_whom_it_wants(bad: bool) -> Story:
    near = Constraints(affinity=(JobTerm(labels=NOISY, by="rack"),))
    story = racks("r1", "r1", "r2").submit("other", labels={"app": "noisy"}).bind("other", at(0, 0, 0))
    return story.submit("j", cpu(1), constraints=near).bind("j", at(0, 2 if bad else 1))


@case("constraint")
def the_first_of_its_kind_keeps_its_own_together(bad: bool) -> Story:
    near = Constraints(affinity=(JobTerm(labels=NOISY, by="rack"),))
    story = racks("r1", "r1", "r2").submit("j", cpu(1, count=2, min=2), constraints=near, labels={"app": "noisy"})
    return story.bind("j", at(0, 0), at(1, 1 + bad))


@case("constraint")
def a_job_is_away_from_those_whom_it_does_not_want(bad: bool) -> Story:
    away = Constraints(anti_affinity=(JobTerm(labels=NOISY, by="rack"),))
    story = racks("r1", "r1", "r2").submit("other", labels={"app": "noisy"}).bind("other", at(0, 0, 0))
    return story.submit("j", cpu(1), constraints=away).bind("j", at(0, 1 if bad else 2))


@case("constraint")
def nobody_joins_a_job_that_does_not_want_him(bad: bool) -> Story:
    away = Constraints(anti_affinity=(JobTerm(labels=NOISY, by="rack"),))
    story = racks("r1", "r1", "r2").submit("j", cpu(1), constraints=away).bind("j", at(0, 0))
    return story.submit("other", labels={"app": "noisy"}).bind("other", at(0, 1 if bad else 2, 0))


@case("constraint")
def members_that_do_not_want_each_other_are_apart(bad: bool) -> Story:
    away = Constraints(anti_affinity=(JobTerm(labels=NOISY),))
    story = racks("", "").submit("j", cpu(1, count=2, min=2), constraints=away, labels={"app": "noisy"})
    return story.bind("j", at(0, 0), at(1, 0 if bad else 1))


@case("constraint")
def an_exclusive_job_takes_a_node_that_nobody_has(bad: bool) -> Story:
    story = racks("", "").submit("other").bind("other", at(0, 0, 0))
    return story.submit("j", cpu(1), constraints=Constraints(exclusive=True)).bind("j", at(0, 0 if bad else 1))


@case("constraint")
def nobody_shares_the_node_of_an_exclusive_job(bad: bool) -> Story:
    story = racks("", "").submit("j", cpu(1), constraints=Constraints(exclusive=True)).bind("j", at(0, 0))
    return story.submit("other").bind("other", at(0, 0 if bad else 1, 0))


@case("constraint")
def nobody_comes_where_a_node_is_kept_for_an_exclusive_job(bad: bool) -> Story:
    alone = Constraints(exclusive=True)
    story = racks("", "").submit("low").run("low", at(0, 0, 0)).submit("h", cpu(1), priority=9, constraints=alone)
    named = nominated("h", (at(0, 0),), ("low",), story.now(100))
    story.add(then=(named, preempted("low", "h", story.now())))
    return story.submit("s", cpu(1)).bind("s", at(0, 0 if bad else 1))


@case("constraint")
def a_port_of_a_node_is_one_tasks(bad: bool) -> Story:
    story = racks("", "").submit("j", GroupRequest(ports=(80,))).bind("j", at(0, 0))
    return story.submit("k", GroupRequest(ports=(81, 80))).bind("k", at(0, 0 if bad else 1))


def two_numa_nodes() -> Story:
    """A node of 8 cores and four devices, the half of each on one NUMA node."""
    devices = tuple([Device(uuid=f"d{index}", memory_mib=1000, numa=index // 2) for index in range(4)])
    spec = NodeSpec(cpu_milli=8000, memory_mib=8000, numa=2, devices=devices)
    return Story().add(NodeRegistered(node="a", uid="uid-a", boot="b1", spec=spec))


@case("constraint")
def devices_that_have_to_be_of_one_numa_node_are(bad: bool) -> Story:
    return (
        two_numa_nodes().submit("j", GroupRequest(gpus=2, numa="required")).bind("j", at(0, 0, 1 if bad else 0, 2 if bad else 1))
    )


@case("constraint")
def what_is_pinned_to_a_numa_node_fits_into_it(bad: bool) -> Story:
    story = two_numa_nodes().submit("j", GroupRequest(gpus=1, cpu_milli=3000, numa="required")).bind("j", at(0, 0, 0))
    return story.submit("k", GroupRequest(gpus=1, cpu_milli=3000, numa="required")).bind("k", at(0, 0, 1 if bad else 2))


@case("constraint")
def licences_are_not_given_twice(bad: bool) -> Story:
    asked = Constraints(licences=(Licences(name="solver", count=2),))
    story = racks("").add(LicencesSet(licences={"solver": 3 if bad else 4}))
    story.submit("j", cpu(1), constraints=asked).bind("j", at(0, 0))
    return story.submit("k", cpu(1), constraints=asked).bind("k", at(0, 0))


@case("constraint")
def licences_are_held_until_the_last_task_is_gone(bad: bool) -> Story:
    asked = Constraints(licences=(Licences(name="solver"),))
    story = racks("").add(LicencesSet(licences={"solver": 1})).submit("j", cpu(1, count=2, min=2), constraints=asked)
    story.run("j", at(0, 0), at(1, 0)).submit("k", cpu(1), constraints=asked).add(exited("j"))
    if not bad:
        story.add(exited("j", rank=1), then=(ended("j", "finished"),))
    return story.bind("k", at(0, 0))


@case("minimal")
def nobody_leaves_for_licences_who_has_none(bad: bool) -> Story:
    asked = Constraints(licences=(Licences(name="solver"),))
    story = racks("").add(LicencesSet(licences={"solver": 1}))
    story.submit("low", cpu(1), constraints=UNSET if bad else asked).run("low", at(0, 0))
    story.submit("h", cpu(1), priority=9, constraints=asked)
    named = nominated("h", (at(0, 0),), ("low",), story.now(100))
    return story.add(then=(named, preempted("low", "h", story.now())))


@case("stop")
def a_taint_is_put_up_with_for_its_time(bad: bool) -> Story:
    patient = GroupRequest(tolerations=(Toleration(key="bad", any_value=True, seconds=10),))
    story = racks("").submit("j", patient).run("j", at(0, 0))
    story.node("n0", rack="", taints=(Taint(key="bad", effect="NoExecute"),)).wait(5 if bad else 10)
    return story.add(then=(stop("j", "taint", story.now()),))
