"""The load of `muster bench engine --full` is what it says, all its figures are taken, and their logs are in order."""

import time

import pytest

from muster.bench import engine, whole
from muster.bench.cell import Cell
from muster.bench.full import GUARANTEED_PERCENT, FullLoad, queues, shapes

TINY = whole.FullSize(nodes=(40, 60), queues=50, pending=300, starts=(5, 5), cycles=10, plans=20, gang=16, wanted=2)


@pytest.fixture(scope="module")
def taken() -> engine.Bench:
    bench = engine.Bench(engine.QUICK, lambda _: None, time.thread_time)
    whole.run(bench, TINY)
    return bench


def test_every_queue_of_the_tree_has_a_guarantee() -> None:
    tree = list(queues(1000, 76_000))
    assert len(tree) == len({each.queue for each in tree}) == 1000
    assert all(each.guarantee.gpu_milli for each in tree)
    top = sum([each.guarantee.gpu_milli or 0 for each in tree if not each.parent])
    assert 0.95 * GUARANTEED_PERCENT < top / 76_000 / 10 <= GUARANTEED_PERCENT


def test_there_are_500_shapes() -> None:
    assert len(dict.fromkeys(shapes())) == 500
    assert sum([shape.count > 1 for shape in shapes()]) == 20


def test_the_load_keeps_the_cluster_full_and_so_many_waiting() -> None:
    cell = Cell(1)
    cell.register(60)
    load = FullLoad(cell, 60, 50, 300, 5)
    load.set_queues(50)
    load.fill()
    bound = 0
    for _ in range(20):
        bound += load.step()[1]
        assert 200 <= load.waiting <= 300
        held = sum([node.whole_free for node in cell.core.state.nodes if node is not None and not node.cordoned])
        assert held < 0.25 * 60 * 8
    assert bound >= 60
    assert cell.core.state.tree is not None
    assert len(cell.core.state.tree.said) == 50


def test_every_figure_of_the_full_bench_is_taken(taken: engine.Bench) -> None:
    assert [figure.name for figure in taken.figures] == [
        "starts_per_s_40_nodes",
        "cycle_p99_ms_40_nodes",
        "starts_per_s_60_nodes",
        "cycle_p99_ms_60_nodes",
        "gang_16_ms",
        "reclaim_ms",
        "preemption_ms",
        "plan_ms_20_jobs",
        "replan_ms_one_end",
        "replan_ms_one_submission",
    ]
    assert all(figure.limit and figure.value > 0 and figure.floor for figure in taken.figures)


def test_the_logs_of_the_full_bench_are_in_order(taken: engine.Bench) -> None:
    judged = list(engine.checks(taken.logs, lambda _: None))
    assert [(check.log, check.holds, check.found) for check in judged if check.check == "audit"] == [
        (log, True, "") for log in ("full-40", "full-60", "single-decisions", "preemption", "plans")
    ]
    assert all(check.holds for check in judged)
