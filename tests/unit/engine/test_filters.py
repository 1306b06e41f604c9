"""Each filter lets pass exactly the nodes that it should: every operator, every effect, every reason not to be ready."""

from typing import Any

import pytest

from muster.cluster.rules import meets
from muster.cluster.shapes import intern_shape
from muster.engine.filters import FILTERS
from muster.engine.nodeindex import NodeIndex, rows_of
from muster.events.decisions import ShapeDeferred
from muster.events.jobs import GroupRequest, Requirement, Toleration
from muster.events.nodes import DeviceHealthChanged, NodeRegistered, NodesHeard, Taint
from muster.events.operations import NodeCordoned, NodeDrained, NodeFenced
from tests.support.build import device, devices, group, job, node
from tests.support.driver import Driver


def passing(name: str, asked: GroupRequest, *nodes: NodeRegistered) -> list[str]:
    """The nodes that pass the filter of this name."""
    driver = Driver()
    driver.step(*nodes)
    return _passing(driver, name, asked)


def _passing(driver: Driver, name: str, asked: GroupRequest) -> list[str]:
    ledger = driver.state.ledger
    bits = FILTERS[name].passes(NodeIndex(ledger), intern_shape(asked), ledger.registered)
    return [ledger.node(row).name for row in rows_of(bits)]


# Selector


@pytest.mark.parametrize(
    ("op", "values", "meeting"),
    [
        ("In", ("x", "y"), ["x", "y"]),
        ("In", ("7",), ["seven"]),
        ("NotIn", ("x",), ["y", "seven", "none"]),
        ("Exists", (), ["x", "y", "seven"]),
        ("DoesNotExist", (), ["none"]),
        ("Gt", ("6",), ["seven"]),
        ("Gt", ("7",), []),
        ("Lt", ("8",), ["seven"]),
        ("Lt", ("7",), []),
        ("Lt", ("-3",), []),
    ],
)
def test_the_selector_knows_each_operator(op: Any, values: tuple[str, ...], meeting: list[str]) -> None:
    nodes = [
        node("x", labels={"zone": "x"}),
        node("y", labels={"zone": "y"}),
        node("seven", labels={"zone": "7"}),
        node("none", labels={"other": "x"}),
    ]
    asked = group(selector=(Requirement(key="zone", op=op, values=values),))
    assert passing("selector", asked, *nodes) == meeting


@pytest.mark.parametrize(
    ("label", "above"),
    [("-5", True), ("-7", False), ("x", False), ("", False), ("1.5", False), ("--4", False), ("4-", False), ("9" * 15, True)],
)
def test_only_integers_are_compared(label: str, above: bool) -> None:
    assert meets({"n": label}, Requirement(key="n", op="Gt", values=("-6",))) is above


def test_every_requirement_must_be_met() -> None:
    both = (Requirement(key="zone", values=("x",)), Requirement(key="disk", op="Exists"))
    nodes = [node("a", labels={"zone": "x"}), node("b", labels={"zone": "x", "disk": ""}), node("c", labels={"disk": ""})]
    assert passing("selector", group(selector=both), *nodes) == ["b"]


def test_one_of_the_alternatives_must_be_met_too() -> None:
    one = ((Requirement(key="zone", values=("x",)),), (Requirement(key="disk", op="Exists"), Requirement(key="net", op="Exists")))
    nodes = [
        node("a", labels={"zone": "x"}),
        node("b", labels={"disk": ""}),
        node("c", labels={"disk": "", "net": ""}),
        node("d"),
    ]
    assert passing("selector", group(any_of=one), *nodes) == ["a", "c"]
    assert passing("selector", group(any_of=one, selector=(Requirement(key="disk", op="Exists"),)), *nodes) == ["c"]


# Taints


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(), ["clean", "soft", "hard", "wet", "out"]),
        (Toleration(key="dirt", any_value=True), ["clean", "soft", "hard", "out"]),
        (Toleration(key="dirt", value="oil"), ["clean", "soft", "hard", "out"]),
        (Toleration(key="dirt", value="oil", effect="NoSchedule"), ["clean", "soft", "hard"]),
        (Toleration(key="dirt", value="mud"), ["clean", "soft"]),
        (Toleration(effect="NoExecute", any_value=True), ["clean", "soft", "out"]),
        (Toleration(key="wet", any_value=True), ["clean", "soft", "wet"]),
    ],
)
def test_a_toleration_is_compared_by_key_value_and_effect(toleration: Toleration, tolerated: list[str]) -> None:
    if toleration == Toleration():
        toleration = Toleration(any_value=True)
    nodes = [
        node("clean"),
        node("soft", taints=(Taint(key="dirt", value="oil", effect="PreferNoSchedule"),)),
        node("hard", taints=(Taint(key="dirt", value="oil"),)),
        node("wet", taints=(Taint(key="wet"),)),
        node("out", taints=(Taint(key="dirt", value="oil", effect="NoExecute"),)),
    ]
    assert passing("taints", group(tolerations=(toleration,)), *nodes) == tolerated


def test_without_tolerations_only_soft_taints_pass() -> None:
    nodes = [node("soft", taints=(Taint(key="k", effect="PreferNoSchedule"),)), node("hard", taints=(Taint(key="k"),))]
    assert passing("taints", group(), *nodes) == ["soft"]


# Model and resources


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"gpus": 1}, ["a2", "b3", "mixed", "small"]),
        ({"gpus": 3}, ["b3", "mixed"]),
        ({"gpus": 2, "gpu_models": ("A",)}, ["a2", "small"]),
        ({"gpus": 1, "gpu_models": ("A",)}, ["a2", "mixed", "small"]),
        ({"gpus": 3, "gpu_models": ("A", "B")}, ["b3", "mixed"]),
        ({"gpus": 2, "gpu_memory_mib": 1000}, ["a2", "b3", "mixed"]),
        ({"gpu_milli": 500, "gpu_models": ("B",)}, ["b3", "mixed"]),
        ({"gpu_memory_mib": 800}, ["a2", "b3", "mixed"]),
        ({"gpu_models": ("C",), "gpus": 1}, []),
        ({"cpu_milli": 1}, ["a2", "b3", "mixed", "small", "bare"]),
    ],
)
def test_devices_are_counted_by_model_and_memory(asked: dict[str, Any], names: list[str]) -> None:
    nodes = [
        node("a2", devices=devices("a2", 2, model="A")),
        node("b3", devices=devices("b3", 3, model="B")),
        node("mixed", devices=(device("m0", "A"), device("m1", "B"), device("m2", "B"))),
        node("small", devices=devices("small", 2, model="A", memory_mib=500)),
        node("bare", 0),
    ]
    assert passing("model", group(**asked), *nodes) == names


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"cpu_milli": 4000}, ["a", "b"]),
        ({"cpu_milli": 4001}, ["b"]),
        ({"cpu_milli": 1, "memory_mib": 101}, ["a"]),
        ({"cpu_milli": 1, "disk_mib": 11}, []),
        ({"cpu_milli": 8000, "memory_mib": 100, "disk_mib": 10}, ["b"]),
    ],
)
def test_a_node_that_is_too_small_in_all_does_not_pass(asked: dict[str, Any], names: list[str]) -> None:
    nodes = [
        node("a", cpu_milli=4000, memory_mib=200, disk_mib=10),
        node("b", cpu_milli=8000, memory_mib=100, disk_mib=10),
    ]
    assert passing("resources", group(**asked), *nodes) == names


# Ready


def test_only_nodes_that_take_new_work_are_ready() -> None:
    driver = Driver(flap_limit=1, silent_after_us=1)
    driver.step(*[node(name) for name in ("fine", "cordoned", "drained", "fenced", "silent", "flapping")])
    driver.step(NodesHeard(missing=(5,)))
    driver.step(NodesHeard())
    driver.step(NodeCordoned(node="cordoned"), NodeDrained(node="drained"), NodeFenced(node="fenced"))
    driver.step(NodesHeard(missing=(4,)))
    driver.step()
    assert driver.node("silent").liveness == "silent"
    assert driver.node("flapping").quarantined_until_us
    assert _passing(driver, "ready", group()) == ["fine"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"selector": (Requirement(key="zone", op="Exists"),)}, "selector"),
        ({"gpu_models": ("C",), "gpus": 1}, "model"),
        ({"cpu_milli": 65_000}, "too-small"),
        ({"gpus": 2}, "resources"),
    ],
)
def test_the_leading_reason_is_recorded(asked: dict[str, Any], code: str) -> None:
    driver = Driver()
    driver.step(node("a"), job("first"))
    driver.step(job("j", group(**asked)))
    assert [event.code for event in driver.found(ShapeDeferred)] == [code]


def test_the_leading_reason_is_the_first_filter_that_leaves_no_node() -> None:
    driver = Driver()
    driver.step(job("nobody"))
    assert driver.found(ShapeDeferred)[0].code == "no-nodes"
    driver = Driver()
    driver.step(node("a", taints=(Taint(key="k"),)), job("j"))
    assert driver.found(ShapeDeferred)[0].code == "taint"
    driver.step(NodeCordoned(node="a"), job("k", group(gpu_milli=100)))
    assert driver.found(ShapeDeferred)[0].code == "not-ready"


def test_a_device_that_is_not_healthy_still_counts_as_had() -> None:
    driver = Driver()
    driver.step(node("a"))
    driver.step(DeviceHealthChanged(node="a", uid="uid-a", device="a-0", health="failed"), job("j", group(gpus=2)))
    assert driver.found(ShapeDeferred)[0].code == "resources"


def test_each_filter_has_a_sentence_for_a_person() -> None:
    shape = intern_shape(group(gpus=2, gpu_models=("A", "B"), selector=(Requirement(key="zone", values=("x",)),)))
    for name, each in FILTERS.items():
        assert each.code
        assert len(each.sentence(shape)) > 10, name
