"""Each rule of the second judge: a legal log is passed, and a planted violation is found by that rule alone."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from muster.events.base import Event
from muster.events.decisions import (
    ShapeDeferred,
)
from muster.events.jobs import (
    GroupRequest,
    JobCancelRequested,
    Requirement,
)
from muster.events.nodes import (
    DeviceHealthChanged,
    NodeRegistered,
    NodeRemoved,
    NodeSpec,
    Taint,
    TaskMissing,
)
from muster.events.operations import (
    NodeCordoned,
    NodeDrained,
    NodeFenced,
)
from muster.verify import Judge, judge, verify
from tests.unit.verify import (  # noqa: F401 - imported for the cases that they add
    cases_budgets,
    cases_constraints,
    cases_elastic,
    cases_life,
    cases_places,
    cases_plans,
    cases_queues,
    cases_reservations,
    cases_services,
    cases_turns,
    cases_waiting,
    cases_yielding,
)
from tests.unit.verify.story import (
    CASES,
    S,
    Story,
    at,
    bound,
    ended,
    exited,
    nominated_story,
    stop_story,
)


@pytest.mark.parametrize(("rule", "story"), CASES)
def test_a_legal_log_is_passed(rule: str, story: Callable[[bool], Story]) -> None:
    assert [str(found) for found in verify(story(False).cycles)] == []


@pytest.mark.parametrize(("rule", "story"), CASES)
def test_a_planted_violation_is_found_by_its_rule_alone(rule: str, story: Callable[[bool], Story]) -> None:
    found = verify(story(True).cycles)
    assert [violation.rule for violation in found] == [rule], [str(violation) for violation in found]
    assert re.search(r"\w: \w", found[0].text), "it says what it is about, and what is wrong"


def test_every_rule_has_a_case() -> None:
    named = re.findall(r"^    ([a-z-]+)  ", judge.__doc__ or "", re.MULTILINE)
    assert len(named) > 20
    assert sorted(set(named)) == sorted({param.values[0] for param in CASES})


@pytest.mark.parametrize(
    ("op", "values", "good", "wrong"),
    [
        ("In", ("a", "b"), "b", "c"),
        ("In", ("a",), "a", None),
        ("NotIn", ("a",), None, "a"),
        ("Exists", (), "", None),
        ("DoesNotExist", (), None, ""),
        ("Gt", ("5",), "6", "5"),
        ("Lt", ("-5",), "-6", "-5"),
        ("Gt", ("5",), "10", "ten"),
    ],
)
def test_a_selector_is_met(op: Any, values: tuple[str, ...], good: str | None, wrong: str | None) -> None:
    wants = GroupRequest(gpus=1, selector=(Requirement(key="k", op=op, values=values),))
    for label, rules in ((good, []), (wrong, ["node"])):
        story = Story().node("a", labels={} if label is None else {"k": label}).submit("j", wants).bind("j", at(0, 0, 0))
        assert [found.rule for found in verify(story.cycles)] == rules


@pytest.mark.parametrize(
    ("field", "amount"),
    [("cpu_milli", 4000), ("memory_mib", 4000), ("disk_mib", 4000), ("gpu_milli", 500), ("gpu_memory_mib", 500)],
)
def test_nothing_is_given_twice(field: str, amount: int) -> None:
    for third, rules in ((0, []), (1, ["capacity"])):
        story = Story().node("a", devices=1)
        devices = (0,) if field.startswith("gpu") else ()
        for job in ("j", "k"):
            story.submit(job, msgspec.structs.replace(GroupRequest(), **{field: amount})).bind(job, at(0, 0, *devices))
        if third:
            story.submit("l", msgspec.structs.replace(GroupRequest(), **{field: 1})).bind("l", at(0, 0, *devices))
        assert [found.rule for found in verify(story.cycles)] == rules


@pytest.mark.parametrize(
    "gone",
    [
        NodeRemoved(node="a", uid="uid-a"),
        NodeFenced(node="a"),
        NodeRegistered(node="a", uid="uid-a", boot="b2", spec=NodeSpec()),
        NodeRegistered(node="a", uid="uid-other", boot="b1", spec=NodeSpec()),
        TaskMissing(job="j", instance=0, attempt=1, rank=0),
    ],
)
def test_a_task_is_gone_with_its_node(gone: Event) -> None:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0)).add(gone, then=(ended("j", "pending", reason="lost"),))
    assert verify(story.cycles) == []


@pytest.mark.parametrize(
    "nothing",
    [
        NodeRemoved(node="a", uid="uid-old"),
        NodeRegistered(node="a", uid="uid-a", boot="b1", spec=NodeSpec()),
        exited("j", attempt=2),
        exited("j", rank=1),
        TaskMissing(job="j", instance=0, attempt=9, rank=0),
        NodeDrained(node="a"),
    ],
)
def test_a_task_is_not_gone_by_anything_else(nothing: Event) -> None:
    story = Story().node("a").submit("j").run("j", at(0, 0, 0)).add(nothing, then=(ended("j", "pending", reason="lost"),))
    assert [found.rule for found in verify(story.cycles)] == ["held"]


@pytest.mark.parametrize(
    ("reason", "so", "not_so"),
    [
        ("cancelled", {"inputs": [JobCancelRequested(job="j")]}, {"inputs": [JobCancelRequested(job="j", instance=1)]}),
        ("time-limit", {"wait_s": 9, "time_limit_us": 10 * S}, {"wait_s": 8, "time_limit_us": 10 * S}),
        ("time-limit", {"wait_s": 9, "time_limit_us": 10 * S}, {"wait_s": 9, "time_limit_us": 10 * S, "start": False}),
        ("ready-timeout", {"wait_s": 599, "start": False}, {"wait_s": 598, "start": False}),
        ("ready-timeout", {"wait_s": 599, "start": False}, {"wait_s": 599}),
        ("member-failed", {"inputs": [exited("j", code=1)]}, {"inputs": [exited("j", code=0)]}),
        ("start-failed", {"inputs": [exited("j")], "start": False}, {"inputs": [exited("j", code=1)]}),
        (
            "device-failed",
            {"inputs": [DeviceHealthChanged(node="a", uid="uid-a", device="a-1", health="failed")]},
            {"inputs": [DeviceHealthChanged(node="a", uid="uid-a", device="a-1", health="degraded")]},
        ),
        ("node-lost", {"inputs": [NodeFenced(node="a")]}, {"inputs": [NodeRemoved(node="a", uid="uid-a")]}),
        ("node-removed", {"inputs": [NodeRemoved(node="a", uid="uid-a")]}, {"inputs": [NodeFenced(node="a")]}),
        (
            "node-rebooted",
            {"inputs": [NodeRegistered(node="a", uid="uid-a", boot="b2", spec=NodeSpec())]},
            {"inputs": [NodeRegistered(node="a", uid="uid-a", boot="b1", spec=NodeSpec())]},
        ),
        ("drained", {"inputs": [NodeDrained(node="a")]}, {"inputs": [NodeCordoned(node="a")]}),
        (
            "taint",
            {
                "inputs": [
                    NodeRegistered(node="a", uid="uid-a", boot="b1", spec=NodeSpec(taints=(Taint(key="k", effect="NoExecute"),)))
                ]
            },
            {"inputs": [NodeRegistered(node="a", uid="uid-a", boot="b1", spec=NodeSpec(taints=(Taint(key="k"),)))]},
        ),
        (
            "task-missing",
            {"inputs": [TaskMissing(job="j", instance=0, attempt=1, rank=0)]},
            {"inputs": [TaskMissing(job="j", instance=0, attempt=2, rank=0)]},
        ),
        (
            "finished",
            {"inputs": [exited("j"), exited("j", rank=1)]},
            {"inputs": [exited("j")]},
        ),
        ("cancelled", {"inputs": [JobCancelRequested(job="j")]}, {"inputs": [JobCancelRequested(job="j")], "before_us": 1}),
    ],
)
def test_the_reason_of_an_order_to_stop_is_a_fact(reason: str, so: dict[str, Any], not_so: dict[str, Any]) -> None:
    for told, rules in ((so, []), (not_so, ["stop"])):
        inputs = told.get("inputs", [])
        story = stop_story(reason, *inputs, **{key: value for key, value in told.items() if key != "inputs"})
        assert [found.rule for found in verify(story.cycles)] == rules


def test_what_was_judged_is_counted() -> None:
    judge = Judge()
    for cycle in nominated_story().cycles:
        assert judge.judge(cycle) == []
    summary = judge.summary
    assert (summary.cycles, summary.placements) == (len(nominated_story().cycles), 1)
    assert dict(summary.decisions) == {"InstanceBound": 1, "InstanceStarted": 1, "InstancePreempted": 1, "Nominated": 1}


def test_a_violation_says_where_it_stands() -> None:
    deferred = ShapeDeferred(queue="default", shape="s", code="no-room")
    story = Story().node("a").submit("j").add(then=(deferred, bound("j", at(0, 0, 7))))
    (found,) = verify(story.cycles)
    assert (found.cycle, found.index, found.rule) == (4, 1, "device")
    assert "device 7 of a" in found.text
