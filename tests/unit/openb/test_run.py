"""The openb trace is played through the real core: agents answer, what fits nowhere waits or is dropped, logs are in order."""

from pathlib import Path

import pytest

from muster.cli.main import run as muster
from muster.events.codec import decode_cycle
from muster.events.decisions import InstanceBound
from muster.events.jobs import JobCancelRequested
from muster.events.nodes import NodeRegistered
from muster.log.reader import read_admitted
from muster.log.sqlite import SqliteFile
from muster.replay.audit import audit
from muster.simulator.openb import protocol, run
from muster.simulator.openb.loader import Node, Pod
from muster.verify import verify

NODES = [Node("n-0", 8000, 8000, 2, "T4"), Node("n-1", 8000, 8000, 2, "G2")]


def pod(name: str, gpus: int = 0, gpu_milli: int = 0, at_s: int = 0, run_s: int = 600, models: tuple[str, ...] = ()) -> Pod:
    return Pod(name, 1000, 1000, gpus, gpu_milli, models, at_s, at_s + run_s, at_s)


PODS = [
    pod("a", gpus=2, models=("T4",)),
    pod("b", gpu_milli=600),
    pod("c", gpu_milli=600, at_s=60),
    pod("d", gpus=2, at_s=120, run_s=300),
    pod("e", at_s=180),
    pod("f", gpus=3, at_s=200),
    pod("g", gpu_milli=300, at_s=5000, run_s=1),
]


def replayed(folder: Path) -> run.Summary:
    with SqliteFile.open(folder, writer=True) as file:
        return run.replay(NODES, PODS, protocol.policy("default", PODS), file, lambda _: None)


def judged(folder: Path) -> None:
    assert audit(lambda: read_admitted(folder)).difference is None
    assert verify(decode_cycle(data) for _, data in read_admitted(folder)) == []


def test_pods_run_as_long_as_they_did_and_those_that_fit_nowhere_wait(tmp_path: Path) -> None:
    summary = replayed(tmp_path)
    assert (summary.pods, summary.bound, summary.pending, summary.rejected) == (7, 6, 1, 0)
    assert (summary.ended, summary.allocated_milli) == (5, 300)
    assert summary.peak_milli == 3200
    judged(tmp_path)


def test_a_trace_plays_the_same_twice(tmp_path: Path) -> None:
    replayed(tmp_path / "a")
    replayed(tmp_path / "b")
    one, other = ([data for _, data in read_admitted(tmp_path / name)] for name in ("a", "b"))
    assert one == other


def test_more_pods_at_once_than_a_cycle_takes_are_all_bound(tmp_path: Path) -> None:
    pods = [pod(f"p-{number}", gpu_milli=1) for number in range(2500)]
    nodes = [Node(f"n-{number}", 10**9, 10**9, 8, "T4") for number in range(9)]
    with SqliteFile.open(tmp_path, writer=True) as file:
        summary = run.replay(nodes, [*pods, pod("last", at_s=5000)], protocol.policy("default", pods), file, lambda _: None)
    assert (summary.bound, summary.ended) == (2501, 2500)


@pytest.mark.parametrize("policy", ["default", "bestfit", "fgd"])
def test_by_the_protocol_nobody_leaves_and_what_fits_nowhere_is_dropped(policy: str, tmp_path: Path) -> None:
    arrivals = [1, 0, 3, 2, 4, 5, 1, 1, 6] * 20
    with SqliteFile.open(tmp_path, writer=True) as file:
        summary, curve = run.follow_protocol(
            NODES, PODS, arrivals, {"n-0": 1, "n-1": 0}, protocol.policy(policy, PODS), file, lambda _: None
        )
    assert summary.bound + summary.dropped == len(arrivals)
    assert summary.allocated_milli == curve.allocated_milli <= 4000
    assert curve.arrived_milli == sum(PODS[number].asked_milli for number in arrivals)
    cycles = [decode_cycle(data) for _, data in read_admitted(tmp_path)]
    cancelled = {event.job for cycle in cycles for event in cycle.inputs if isinstance(event, JobCancelRequested)}
    bound = {event.job for cycle in cycles for event in cycle.decisions if isinstance(event, InstanceBound)}
    assert (len(cancelled), len(bound), cancelled & bound) == (summary.dropped, summary.bound, set())
    judged(tmp_path)


def test_the_lowest_rank_wins_a_tie(tmp_path: Path) -> None:
    for name, ranks in (("a", {"n-0": 0, "n-1": 1}), ("b", {"n-0": 1, "n-1": 0})):
        with SqliteFile.open(tmp_path / name, writer=True) as file:
            run.follow_protocol(NODES, PODS, [1], ranks, protocol.policy("bestfit", PODS), file, lambda _: None)
        cycles = [decode_cycle(data) for _, data in read_admitted(tmp_path / name)]
        names = [event.node for cycle in cycles for event in cycle.inputs if isinstance(event, NodeRegistered)]
        row = next(event for cycle in cycles for event in cycle.decisions if isinstance(event, InstanceBound)).placements[0].row
        assert names[row] == min(ranks, key=lambda node: ranks[node])


def files(folder: Path) -> list[str]:
    (folder / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn-0,8000,8000,2,T4\nn-1,8000,8000,2,G2\n")
    rows = [
        f"{each.name},1000,1000,{each.gpus or (1 if each.gpu_milli else 0)},{each.gpu_milli or (1000 if each.gpus else 0)},"
        f"{'|'.join(each.models)},{each.created_s},{each.deleted_s},{each.scheduled_s}"
        for each in PODS
    ]
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time"
    (folder / "pods.csv").write_text("\n".join([header, *rows]) + "\n")
    return ["simulate", "openb", "--nodes", str(folder / "nodes.csv"), "--pods", str(folder / "pods.csv")]


def test_a_person_reads_what_came_of_it_and_finds_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert muster([*files(tmp_path), "--log", str(tmp_path / "log")]) == 0
    text = capsys.readouterr().out
    assert "pending         1" in text
    assert "0.30 of 4 (7.50 %)" in text
    assert str(tmp_path / "log" / "main.sqlite") in text
    assert muster(["audit", str(tmp_path / "log")]) == 0
    assert muster([*files(tmp_path), "--log", str(tmp_path / "log")]) == 2
    assert "holds a log already" in capsys.readouterr().err


def test_without_files_of_orders_the_protocol_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*files(tmp_path), "--protocol", "fgd", "--policy", "fgd", "--curve", str(tmp_path / "curve.csv")]
    assert muster([*command, "--log", str(tmp_path / "log")]) == 0
    assert "arrived %" in capsys.readouterr().out
    assert (tmp_path / "curve.csv").read_text().startswith("arrived_percent,allocated_percent\n")


def test_a_curve_that_is_off_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "published.csv").write_text("workload,sc_policy,seed,0,100\npods,06-FGD,42,0.0,1.0\n")
    command = [*files(tmp_path), "--protocol", "fgd", "--policy", "fgd", "--published", str(tmp_path / "published.csv")]
    assert muster([*command, "--log", str(tmp_path / "log")]) == 1
    assert "points off at most (at 100 % arrived), more than 0.01" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--arrivals", "x"], "--arrivals belongs to --protocol fgd"),
        (["--protocol", "fgd", "--hurry", "2"], "--hurry belongs to --protocol trace"),
        (["--protocol", "fgd", "--published", "x"], "--published compares a whole run"),
        (["--policy", "worst"], "'worst' is not one of"),
        (["--nodes", "missing.csv"], "missing.csv: cannot be read: No such file"),
    ],
)
def test_options_that_make_no_sense_are_named(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert muster([*files(tmp_path), "--log", str(tmp_path / "log"), *options]) in (2, 3)
    assert sentence in capsys.readouterr().err.replace("\n", " ")
