"""Cases of the rules about cycles, lives of instances and lives of nodes."""

from muster.events.decisions import (
    AttemptEnded,
    InstanceEnded,
    InstanceStarted,
    JobRejected,
    JobsForgotten,
    MemberLost,
    MembersReplaced,
    NodeLost,
    NodeReleased,
    NodeReturned,
    NodeSilent,
    ShapeDeferred,
)
from muster.events.jobs import (
    JobCancelRequested,
)
from muster.events.nodes import (
    NodeRemoved,
    NodesHeard,
    TaskMissing,
    TaskReady,
)
from muster.events.operations import (
    EntryQuarantined,
    LeaseExtended,
    NodeFenced,
    Policy,
    PolicySet,
)
from tests.unit.verify.story import (
    S,
    Story,
    at,
    bound,
    case,
    cpu,
    degraded_story,
    ended,
    exited,
    kept,
    nominated_story,
    quarantined_story,
    stop,
    stop_story,
)

# The cycle


@case("time")
def numbers_are_dense(bad: bool) -> Story:
    return Story().add(number=3 if bad else 2)


@case("time")
def time_never_goes_back(bad: bool) -> Story:
    story = Story().add()
    return story.add(at_us=story.at_us - 1 if bad else story.at_us)


@case("time")
def a_term_begins_with_a_term_started(bad: bool) -> Story:
    return Story().add(term=2) if bad else Story().lead().add()


@case("time")
def terms_rise(bad: bool) -> Story:
    return Story().lead(term=1).add(term=1) if bad else Story().lead().add()


@case("bounds")
def a_cycle_has_no_more_deferrals_than_the_policy_says(bad: bool) -> Story:
    deferred = ShapeDeferred(queue="default", shape="s", code="no-room")
    return Story().add(PolicySet(policy=Policy(deferrals_max=1)), then=(deferred,) * (2 if bad else 1))


@case("bounds")
def a_cycle_has_no_more_inputs_than_the_policy_says(bad: bool) -> Story:
    story = Story().add(PolicySet(policy=Policy(inputs_max=2)))
    return story.add(*[NodesHeard()] * (3 if bad else 2))


@case("bounds")
def a_cycle_has_no_more_decisions_than_the_policy_says(bad: bool) -> Story:
    deferred = ShapeDeferred(queue="default", shape="s", code="no-room")
    return Story().add(PolicySet(policy=Policy(decisions_max=1)), then=(deferred,) * (2 if bad else 1))


@case("bounds")
def a_cycle_has_no_more_placements_than_the_policy_says(bad: bool) -> Story:
    story = Story().node("a").add(PolicySet(policy=Policy(placements_max=2))).submit("j", cpu(1, count=3))
    return story.bind("j", *[at(rank, 0) for rank in range(3 if bad else 2)])


@case("bounds")
def a_record_that_starts_a_term_has_no_entries(bad: bool) -> Story:
    return Story().lead(decisions=(ShapeDeferred(queue="default", shape="s", code="no-room"),)) if bad else Story().lead()


@case("kind")
def an_input_is_no_decision(bad: bool) -> Story:
    return Story().add(then=(NodesHeard(),)) if bad else Story().add(NodesHeard())


@case("kind")
def a_decision_is_no_input(bad: bool) -> Story:
    deferred = ShapeDeferred(queue="default", shape="s", code="no-room")
    return Story().add(deferred) if bad else Story().add(then=(deferred, EntryQuarantined(kind="NodeLost")))


# What a decision names


@case("unknown")
def a_job_that_is_bound_was_submitted(bad: bool) -> Story:
    return Story().node("a").submit("other" if bad else "j").bind("j", at(0, 0, 0))


@case("unknown")
def an_array_has_no_more_instances_than_were_asked_for(bad: bool) -> Story:
    return Story().node("a").submit("j", array=2).bind("j", at(0, 0, 0), instance=2 if bad else 1)


@case("unknown")
def a_job_that_is_rejected_was_submitted(bad: bool) -> Story:
    return Story().submit("j").add(then=(JobRejected(job="k" if bad else "j", reason="never fits"),))


@case("unknown")
def a_row_belongs_to_the_lowest_free_place(bad: bool) -> Story:
    story = Story().node("a").node("b").node("c").add(NodeRemoved(node="b", uid="uid-b")).node("d").node("e")
    story.wait(30).add(NodesHeard(missing=(1, 3)))
    wrong = [NodeSilent(node="e", row=1), NodeSilent(node="e", row=3)]
    right = [NodeSilent(node="d", row=1), NodeSilent(node="e", row=3)]
    return story.add(then=tuple(wrong if bad else right)) if not bad else story.add(then=(wrong[0],))


@case("unknown")
def a_nomination_that_ends_was_there(bad: bool) -> Story:
    story = nominated_story()
    story.add(
        exited("low"), then=(ended("low", "pending", reason="preempted"), kept("high", "bound"), bound("high", at(0, 0, 0)))
    )
    return story.add(then=(kept("high", "infeasible"),)) if bad else story


@case("terminal")
def nothing_is_decided_about_what_is_over(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0)).add(exited("j"), then=(ended("j", "finished"),))
    return story.bind("j", at(0, 0, 0), attempt=2) if bad else story


@case("terminal")
def what_was_cancelled_is_not_bound(bad: bool) -> Story:
    story = Story().node("a").submit("j").add(JobCancelRequested(job="j"))
    over = InstanceEnded(job="j", instance=0, outcome="cancelled")
    return story.bind("j", at(0, 0, 0)) if bad else story.add(then=(over,))


@case("terminal")
def what_runs_is_not_rejected(bad: bool) -> Story:
    story = Story().node("a").submit("j")
    if bad:
        story.bind("j", at(0, 0, 0))
    return story.add(then=(JobRejected(job="j", reason="never fits"),))


@case("terminal")
def a_repeated_submission_is_no_second_job(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0)).submit("j", cpu(1))
    story.add(exited("j"), then=(ended("j", "finished"),)).submit("j")
    return story.bind("j", at(0, 0, 0), attempt=1) if bad else story


@case("attempt")
def attempts_count_without_gaps(bad: bool) -> Story:
    return Story().node("a").submit("j").bind("j", at(0, 0, 0), attempt=2 if bad else 1)


@case("attempt")
def an_instance_has_one_attempt_at_a_time(bad: bool) -> Story:
    story = Story().node("a").node("b").submit("j").bind("j", at(0, 0, 0))
    story.add(NodeFenced(node="a"), then=() if bad else (ended("j", "pending", reason="node-lost"),))
    return story.bind("j", at(0, 1, 0), attempt=2)


@case("attempt")
def a_decision_names_the_current_attempt(bad: bool) -> Story:
    story = Story().node("a").node("b").submit("j").bind("j", at(0, 0, 0))
    story.add(NodeFenced(node="a"), then=(ended("j", "pending", reason="node-lost"),)).bind("j", at(0, 1, 0), attempt=2)
    story.add(TaskReady(job="j", instance=0, attempt=2, rank=0))
    return story.add(then=(InstanceStarted(job="j", instance=0, attempt=1 if bad else 2),))


@case("too-early")
def a_back_off_is_waited_for(bad: bool) -> Story:
    story = Story().node("a").node("b").submit("j").bind("j", at(0, 0, 0))
    end = ended("j", "pending", reason="start-failed", not_before_us=story.now(60), avoid="uid-a")
    story.add(exited("j", code=1, blame="node"), then=(end,))
    return story.wait(58 if bad else 59).bind("j", at(0, 1, 0), attempt=2)


# Starts and ends


@case("started")
def every_member_is_ready_at_the_start(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(1, count=2, min=2)).bind("j", at(0, 0), at(1, 0))
    ready = [TaskReady(job="j", instance=0, attempt=1, rank=rank) for rank in range(1 if bad else 2)]
    return story.add(*ready, then=(InstanceStarted(job="j", instance=0, attempt=1),))


@case("started")
def an_attempt_starts_once(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0))
    return story.add(then=(InstanceStarted(job="j", instance=0, attempt=1),)) if bad else story


@case("started")
def a_late_report_makes_nobody_ready(bad: bool) -> Story:
    story = Story().node("a").node("b").submit("j").bind("j", at(0, 0, 0))
    story.add(NodeFenced(node="a"), then=(ended("j", "pending", reason="node-lost"),)).bind("j", at(0, 1, 0), attempt=2)
    story.add(TaskReady(job="j", instance=0, attempt=1 if bad else 2, rank=0))
    return story.add(then=(InstanceStarted(job="j", instance=0, attempt=2),))


@case("held")
def an_attempt_ends_when_nothing_is_held(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(1, count=2, min=2)).run("j", at(0, 0), at(1, 0)).add(JobCancelRequested(job="j"))
    story.add(then=(stop("j", "cancelled", story.now()),))
    exits = [exited("j", rank=rank, code=-9) for rank in range(1 if bad else 2)]
    return story.add(*exits, then=(ended("j", "cancelled"),))


@case("held")
def what_is_bound_does_not_end_without_its_attempt(bad: bool) -> Story:
    story = Story().node("a").submit("j").add(JobCancelRequested(job="j"))
    over = InstanceEnded(job="j", instance=0, outcome="cancelled")
    if bad:
        story = Story().node("a").submit("j").bind("j", at(0, 0, 0)).add(JobCancelRequested(job="j"))
    return story.add(then=(over,))


@case("outcome")
def finished_means_that_all_exited_with_0(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(1, count=2, min=2)).run("j", at(0, 0), at(1, 0))
    return story.add(exited("j"), exited("j", rank=1, code=1 if bad else 0), then=(ended("j", "finished"),))


@case("outcome")
def finished_is_decided_by_the_group_that_is_named(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(1, name="head"), cpu(1, name="worker"), success="head").run("j", at(0, 0), at(1, 0))
    story.add(exited("j"), then=(stop("j", "finished", story.now()),))
    return story.add(exited("j", rank=1, code=-9), then=(ended("j", "failed" if bad else "finished"),))


@case("outcome")
def what_was_lost_with_its_node_has_not_failed(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0))
    return story.add(NodeFenced(node="a"), then=(ended("j", "failed" if bad else "pending", reason="node-lost"),))


@case("outcome")
def what_was_preempted_has_not_failed(bad: bool) -> Story:
    story = nominated_story(grace_s=30).add(exited("low", code=143))
    return story.add(then=(ended("low", "failed" if bad else "pending", reason="preempted"),))


@case("outcome")
def what_nobody_cancelled_is_not_cancelled(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0)).add(exited("j"))
    return story.add(then=(ended("j", "cancelled" if bad else "finished"),))


@case("outcome")
def what_was_cancelled_does_not_run_again(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0)).add(JobCancelRequested(job="j", instance=0))
    story.add(then=(stop("j", "cancelled", story.now()),))
    return story.add(exited("j", code=-9), then=(ended("j", "pending" if bad else "cancelled"),))


@case("outcome")
def what_waits_is_cancelled_only_if_somebody_asked(bad: bool) -> Story:
    story = Story().submit("j", array=2).add(JobCancelRequested(job="j", instance=1))
    return story.add(then=(InstanceEnded(job="j", instance=0 if bad else 1, outcome="cancelled"),))


@case("outcome")
def a_job_with_retries_left_has_not_failed(bad: bool) -> Story:
    story = Story().node("a").submit("j", max_retries=1 if bad else 0).run("j", at(0, 0, 0))
    return story.add(exited("j", code=1), then=(ended("j", "failed", reason="member-failed"),))


@case("retries")
def no_more_is_tried_again_than_was_asked_for(bad: bool) -> Story:
    story = Story().node("a").submit("j", max_retries=1 if bad else 2)
    for attempt in (1, 2):
        story.run("j", at(0, 0, 0), attempt=attempt)
        story.add(
            exited("j", code=1, attempt=attempt), then=(ended("j", "pending", attempt, reason="member-failed", charged=True),)
        )
    return story


@case("retries")
def the_loss_of_a_node_is_not_charged(bad: bool) -> Story:
    story = Story().node("a").submit("j", max_retries=5).run("j", at(0, 0, 0))
    return story.add(NodeFenced(node="a"), then=(ended("j", "pending", reason="node-lost", charged=bad),))


@case("retries")
def a_jobs_own_failure_is_charged(bad: bool) -> Story:
    story = Story().node("a").submit("j", max_retries=5).run("j", at(0, 0, 0))
    return story.add(exited("j", code=1), then=(ended("j", "pending", reason="member-failed", charged=not bad),))


# Orders to stop


@case("stop")
def an_attempt_is_told_to_stop_once(bad: bool) -> Story:
    story = stop_story("cancelled", JobCancelRequested(job="j"))
    return story.add(then=(stop("j", "cancelled", story.now()),)) if bad else story


# Members


@case("degraded")
def a_member_that_is_held_to_be_lost_is_lost(bad: bool) -> Story:
    story = Story().node("a").submit("j", cpu(1), degraded_grace_us=60 * S).run("j", at(0, 0)) if bad else degraded_story()
    return story.add(then=(MemberLost(job="j", instance=0, attempt=1, until_us=story.now(60)),))


@case("degraded")
def a_gang_is_degraded_no_longer_than_its_grace(bad: bool) -> Story:
    story = degraded_story()
    return story.add(then=(MemberLost(job="j", instance=0, attempt=1, until_us=story.now(61 if bad else 60)),))


@case("degraded")
def only_what_is_lost_is_replaced(bad: bool) -> Story:
    story = degraded_story()
    return story.add(then=(MembersReplaced(job="j", instance=0, attempt=1, placements=(at(0 if bad else 1, 0),)),))


# Nodes: heard, silent, lost


@case("liveness")
def a_node_is_silent_when_it_was_not_heard_for_long(bad: bool) -> Story:
    story = Story().node("a").add(NodesHeard()).wait(28 if bad else 29)
    return story.add(NodesHeard(missing=(0,)), then=(NodeSilent(node="a", row=0),))


@case("liveness")
def a_node_that_was_not_missing_was_heard(bad: bool) -> Story:
    story = Story().node("a").node("b").add(NodesHeard(missing=(0,))).wait(29)
    return story.add(NodesHeard(missing=(0,)), then=(NodeSilent(node="b" if bad else "a", row=1 if bad else 0),))


@case("liveness")
def nothing_is_held_against_nodes_while_nobody_leads(bad: bool) -> Story:
    story = Story().node("a").wait(10).add(NodesHeard(missing=(0,))).lead(gap_us=100 * S)
    return story.wait(15 if bad else 17).add(then=(NodeSilent(node="a", row=0),))


@case("liveness")
def a_node_is_lost_when_its_lease_and_the_margin_are_over(bad: bool) -> Story:
    story = Story().node("a").wait(40).add(NodesHeard(missing=(0,)), then=(NodeSilent(node="a", row=0),))
    return story.wait(287 if bad else 289).add(then=(NodeLost(node="a", row=0),))


@case("liveness")
def no_node_is_lost_while_the_lease_is_extended(bad: bool) -> Story:
    story = Story().node("a").wait(40).add(NodesHeard(missing=(0,)), then=(NodeSilent(node="a", row=0),))
    story.add(LeaseExtended(until_us=story.now(1000)))
    return story.wait(500 if bad else 1000).add(then=(NodeLost(node="a", row=0),))


@case("liveness")
def a_node_that_returns_was_heard(bad: bool) -> Story:
    story = Story().node("a").wait(40).add(NodesHeard(missing=(0,)), then=(NodeSilent(node="a", row=0),))
    return story.add(NodesHeard(missing=(0,) if bad else ()), then=(NodeReturned(node="a", row=0),))


@case("quarantine")
def a_node_in_quarantine_was_silent_so_often(bad: bool) -> Story:
    return quarantined_story(times=2 if bad else 3)


@case("quarantine")
def a_quarantine_ends_in_its_time(bad: bool) -> Story:
    return quarantined_story(until_s=60).wait(58 if bad else 59).add(then=(NodeReleased(node="a", row=0),))


@case("forgotten")
def a_job_is_forgotten_an_hour_after_its_end(bad: bool) -> Story:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0)).add(exited("j"), then=(ended("j", "finished"),))
    return story.wait(3598 if bad else 3599).add(then=(JobsForgotten(jobs=("j",)),))


@case("forgotten")
def a_job_that_is_not_over_is_not_forgotten(bad: bool) -> Story:
    story = Story().node("a").submit("j", array=2).run("j", at(0, 0, 0)).add(exited("j"), then=(ended("j", "finished"),))
    if not bad:
        story.bind("j", at(0, 0, 0), instance=1).add(TaskMissing(job="j", instance=1, attempt=1, rank=0))
        return story.add(then=(AttemptEnded(job="j", instance=1, attempt=1, then="pending"),))
    return story.wait(9999).add(then=(JobsForgotten(jobs=("j",)),))
