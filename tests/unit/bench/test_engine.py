"""The benchmark's cell really is kept full by jobs that live and end, its figures come out, and their shape is stable."""

import time

import msgspec
import pytest

from muster.bench import engine
from muster.bench.cell import Cell, Load, Unexpected
from muster.bench.mix import GPUS_A_NODE, Mix, nodes
from muster.events.codec import decode_cycle, encode_cycle
from muster.events.jobs import GroupRequest

TINY = engine.Size(nodes=40, small_nodes=20, window=50, gang_tasks=(5, 10, 20, 40), pending=300, shapes=100, entries=3000)


def test_the_mix_has_at_least_200_shapes_and_follows_the_seed() -> None:
    assert len(dict.fromkeys(Mix(1).groups)) >= 200
    drawn = [[mix.draw() for _ in range(50)] for mix in (Mix(1), Mix(1), Mix(2))]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_nodes_have_eight_gpus_of_three_models() -> None:
    registered = list(nodes(30))
    assert {len(event.spec.devices) for event in registered} == {GPUS_A_NODE}
    assert len(dict.fromkeys(event.spec.devices[0].model for event in registered)) == 3


def test_a_load_keeps_the_cluster_at_its_share_with_whole_lives() -> None:
    cell = Cell(3)
    cell.register(40)
    assert sum(node is not None and node.cordoned for node in cell.core.state.nodes) == 2
    load = Load(cell, 40, 70)
    load.fill()
    bound = 0
    for _ in range(20):
        _, more = load.step()
        bound += more
        assert abs(load.held_milli - load.target_milli) < 0.15 * load.target_milli
    assert 350 < bound <= 400
    kinds = [type(event).__name__ for data in cell.records for event in decode_cycle(data).inputs]
    assert {kind: kinds.count(kind) > 300 for kind in ("JobSubmitted", "TaskStarted", "TaskExited")} == {
        "JobSubmitted": True,
        "TaskStarted": True,
        "TaskExited": True,
    }
    assert max(len(decode_cycle(data).inputs) for data in cell.records) <= 500
    held = sum(node.spec.devices.__len__() * 1000 for node in cell.core.state.nodes if node is not None) * 7 // 10
    assert load.target_milli == held


@pytest.fixture(scope="module")
def taken() -> engine.Bench:
    bench = engine.Bench(TINY, lambda _: None, time.thread_time)
    bench.run()
    return bench


def test_every_figure_is_taken(taken: engine.Bench) -> None:
    assert [figure.name for figure in taken.figures] == [
        "placements_per_s_20_nodes",
        "placements_per_s_40_nodes",
        "gang_ms_5_tasks",
        "gang_ms_10_tasks",
        "gang_ms_20_tasks",
        "gang_ms_40_tasks",
        "gang_exponent",
        "never_fits_ms",
        "never_fits_cold_ms",
        "recovery_s_3000_entries",
        "freed_gpu_ms_300_pending",
        "memory_mib_40_nodes",
        "memory_mib_300_pending",
    ]
    assert all(figure.limit for figure in taken.figures)
    assert all(figure.value > 0 for figure in taken.figures if not figure.name.startswith(("memory", "gang_exponent")))


def test_the_logs_are_in_order_and_the_output_keeps_its_shape(taken: engine.Bench) -> None:
    judged = list(engine.checks(taken.logs, lambda _: None))
    assert [(check.log, check.check, check.holds, check.found) for check in judged] == [
        (log, check, True, "") for log in ("placements-20", "placements-40", "pending-300") for check in ("audit", "verify")
    ]
    found = msgspec.json.decode(msgspec.json.encode(engine.results(taken, judged)))
    assert list(found) == [
        "bench", "schema", "quick", "seed", "python", "numpy", "machine", "clock", "figures", "checks", "holds"
    ]  # fmt: skip
    assert list(found["figures"][0]) == ["name", "value", "unit", "better", "floor", "holds", "samples", "limit"]
    assert list(found["checks"][0]) == ["log", "check", "records", "entries", "holds", "found", "took_s"]
    assert (found["bench"], found["schema"], found["quick"], found["holds"]) == ("engine", 1, True, True)


def test_a_log_with_a_decision_less_is_not_in_order(taken: engine.Bench) -> None:
    name, cell = taken.logs[0]
    altered = Cell(1)
    cycle = decode_cycle(cell.records[-1])
    assert cycle.decisions
    altered.records = [*cell.records[:-1], encode_cycle(msgspec.structs.replace(cycle, decisions=cycle.decisions[:-1]))]
    audited, _ = engine.checks([(name, altered)], lambda _: None)
    assert not audited.holds
    assert "is decided and not recorded" in audited.found


def test_floors_hold_for_the_full_size_alone(taken: engine.Bench) -> None:
    assert {figure.holds for figure in taken.figures} == {None}
    full = engine.Bench(engine.FULL, lambda _: None, time.thread_time)
    full.add("slow", [1.0], "1/s", 2.0, "", higher=True)
    full.add("fast", [3.0], "ms", 4.0, "")
    assert [figure.holds for figure in full.figures] == [False, True]
    assert not engine.results(full, []).holds


def test_a_figure_of_something_else_is_no_figure() -> None:
    cell = Cell(1)
    cell.register(1)
    with pytest.raises(Unexpected, match="a gang of 500 tasks was not bound"):
        engine.Bench(engine.FULL, lambda _: None, time.thread_time).gangs(cell)


def test_a_cancelled_gang_gives_everything_back() -> None:
    cell = Cell(1)
    cell.register(10)
    job = cell.submit(GroupRequest(count=40, min=40, cpu_milli=1000, gpus=1)).job
    cell.drain()
    cell.cancel(job)
    assert all(node is None or node.whole_free == GPUS_A_NODE for node in cell.core.state.nodes)
