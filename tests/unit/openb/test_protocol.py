"""The published protocol: its target workload, its curves, and the orders that are drawn where none are given."""

from pathlib import Path

import pytest

from muster.events.operations import TargetClass
from muster.simulator.openb.loader import Node, Pod, TraceError
from muster.simulator.openb.protocol import (
    Curve,
    drawn_arrivals,
    drawn_ranks,
    policy,
    read_published,
    target_workload,
    worst_difference,
)


def pod(cpu_milli: int = 1000, gpus: int = 0, gpu_milli: int = 0, models: tuple[str, ...] = (), memory_mib: int = 1) -> Pod:
    return Pod("p", cpu_milli, memory_mib, gpus, gpu_milli, models, None, None, None)


def test_the_target_workload_is_the_most_frequent_classes_that_cover_95_percent() -> None:
    pods = [pod(gpus=1)] * 60 + [pod(gpu_milli=500)] * 30 + [pod(gpus=8)] * 5 + [pod(gpus=4)] * 5
    assert target_workload(pods) == (
        TargetClass(cpu_milli=1000, gpus=1, weight=60),
        TargetClass(cpu_milli=1000, gpu_milli=500, weight=30),
        TargetClass(cpu_milli=1000, gpus=8, weight=5),
    )


def test_memory_makes_no_class_and_models_do() -> None:
    pods = [pod(gpus=1, memory_mib=1), pod(gpus=1, memory_mib=2), pod(gpus=1, models=("T4",))]
    assert [(target.gpu_models, target.weight) for target in target_workload(pods)] == [((), 2), (("T4",), 1)]


def test_only_fgd_carries_a_target_workload() -> None:
    assert policy("fgd", [pod(gpus=1)]).targets == (TargetClass(cpu_milli=1000, gpus=1, weight=1),)
    assert policy("bestfit", [pod(gpus=1)]).targets == policy("default", [pod()]).targets == ()


def test_a_bin_is_the_mean_of_what_was_measured_in_it() -> None:
    curve = Curve(10_000)
    for asked_milli, placed in ((100, True), (0, True), (40, False), (20, True)):
        curve.add(asked_milli, placed)
    assert curve.values() == {1: pytest.approx(1.0), 2: pytest.approx(1.2)}
    assert (curve.arrived_milli, curve.allocated_milli) == (160, 120)


def test_half_a_percent_is_rounded_to_the_even_one() -> None:
    curve = Curve(1000)
    curve.add(5, True)
    curve.add(10, True)
    assert list(curve.values()) == [0, 2]


def test_drawn_arrivals_ask_for_no_more_than_130_percent_and_follow_the_seed() -> None:
    pods = [pod(gpus=1), pod(gpu_milli=300), pod()] * 10
    arrivals = drawn_arrivals(pods, 20_000, 7)
    asked_milli = sum(pods[number].asked_milli for number in arrivals)
    assert 25_000 <= asked_milli <= 26_000
    assert sorted(dict.fromkeys(arrivals)) == list(range(30))
    assert arrivals == drawn_arrivals(pods, 20_000, 7) != drawn_arrivals(pods, 20_000, 8)


def test_a_list_that_asks_for_more_than_130_percent_is_shortened() -> None:
    pods = [pod(gpus=2)] * 20
    assert len(drawn_arrivals(pods, 20_000, 1)) == 13


def test_pods_without_gpus_are_not_copied() -> None:
    assert sorted(drawn_arrivals([pod()] * 3, 20_000, 1)) == [0, 1, 2]


def test_drawn_ranks_are_a_permutation() -> None:
    nodes = [Node(f"n-{number}", 1, 1, 1, "T4") for number in range(9)]
    assert sorted(drawn_ranks(nodes, 1).values()) == list(range(9))


def test_a_published_curve_is_found_by_list_policy_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "published.csv"
    path.write_text(
        "workload,sc_policy,tune,seed,total_gpus,0,1,2\nlist_a,06-FGD,1.3,42,6212,0.5,1.0,\nlist_a,06-FGD,1.3,43,6212,0.1,x,2\n"
    )
    assert read_published(path, "fgd", 42, tmp_path / "list_a.csv.gz") == {0: 0.5, 1: 1.0}
    with pytest.raises(TraceError, match="no run of the policy bestfit on list_a with seed 42"):
        read_published(path, "bestfit", 42, tmp_path / "list_a.csv")
    with pytest.raises(TraceError, match="line 3: column 1: 'x' is no number"):
        read_published(path, "fgd", 43, tmp_path / "list_a.csv")


def test_a_missing_bin_is_a_difference() -> None:
    assert worst_difference({0: 0.5}, {0: 0.505, 1: 1.0}) == (1.0, 1)
