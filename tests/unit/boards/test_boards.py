"""A small cut of each board: what is not timed comes out as it must, and its log passes audit and the second judge."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from muster.cli.main import run
from muster.events.codec import decode_cycle
from muster.events.decisions import InstanceBound
from muster.events.jobs import JobSubmitted
from muster.events.operations import Policy
from muster.log.reader import read_admitted
from muster.log.sqlite import SqliteFile
from muster.replay.audit import audit
from muster.simulator.boards import armada, kai, kueue, lublin, shapes
from muster.simulator.boards.table import BOARDS, NEED_DATA, policy_of
from muster.simulator.openb.loader import TraceError
from muster.verify import verify

DATA = Path(__file__).parents[4] / "shared" / "data" / "batch_swf"
PAGE = Path(__file__).parents[3] / "docs" / "scoreboard.md"
SWF = """; a log of four jobs
1 100 -1 1000 256 -1
2 110 -1   10   1 -1
3 120 -1  100 255 -1
4 130 -1    5 256 -1
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    with SqliteFile.open(tmp_path / "log", writer=True) as opened:
        yield opened


def judged(file: SqliteFile) -> None:
    folder = file.path.parent
    assert audit(lambda: read_admitted(folder)).difference is None
    assert verify(decode_cycle(data) for _, data in read_admitted(folder)) == []


def read(tmp_path: Path, text: str) -> list[lublin.Job]:
    (tmp_path / "list.swf").write_text(text)
    return lublin.read_swf(tmp_path / "list.swf")


@pytest.mark.parametrize(
    ("policy", "waits_s"),
    [(Policy(strict=True), (0, 990, 980, 1070)), (policy_of("smallest-first"), (0, 990, 995, 980))],
    ids=["in the order of submission", "the smallest first"],
)
def test_bounded_slowdown_is_that_of_the_waits(
    tmp_path: Path, file: SqliteFile, policy: Policy, waits_s: tuple[int, ...]
) -> None:
    jobs = read(tmp_path, SWF)
    found, played = lublin.play_sequence(jobs, policy, file)
    starts = sorted(played.bound_us.items())
    waits = [at_us // 10**6 + 100 - job.submit_s for (_, at_us), job in zip(starts, jobs, strict=True)]
    assert (played.preempted, played.rejected) == (0, 0)
    assert found == sum(max(1.0, (wait + job.run_s) / max(job.run_s, 10)) for wait, job in zip(waits, jobs, strict=True)) / 4
    assert tuple(waits) == waits_s
    judged(file)


@pytest.mark.parametrize(
    ("text", "says"), [("1 2 x", "line 1: is no line"), ("1 100 -1 5 300", "asks for 300 processors"), ("1 -5 -1 5 3", "at -5 s")]
)
def test_a_list_that_makes_no_sense_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read(tmp_path, text)


@pytest.mark.parametrize("name", ["lublin_256.swf.gz", "lublin_256_new2.swf.gz"])
@pytest.mark.parametrize(("policy", "most"), [("default", 54.0), ("smallest-first", 254.0)])
def test_the_first_jobs_of_a_published_sequence_wait_little(file: SqliteFile, name: str, policy: str, most: float) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name} is not there: the lists are given, and are no part of Muster")
    jobs = lublin.read_swf(DATA / name)
    assert len(jobs) == 10_000
    start = lublin.STARTS[0]
    found, played = lublin.play_sequence(jobs[start : start + 80], policy_of(policy), file)
    assert (played.preempted, played.rejected, len(played.bound_us)) == (0, 0, 80)
    assert found < most
    judged(file)


def test_a_cut_of_the_baseline_ends_at_its_bound_and_the_large_ones_come_first(file: SqliteFile) -> None:
    load = kueue.cut(kueue.BASELINE, 1, 8)
    outcome = kueue.play(load, policy_of("fifo"), file)
    units_ms = sum(kind.count * kind.units * kind.runtime_ms for kind in load.kinds) * load.queues
    bound_s = units_ms / (load.quota * load.queues) / 1000
    assert bound_s <= outcome.makespan_s <= bound_s + 1.3
    waits = outcome.admission_s
    assert waits["large"] <= 0.25
    assert waits["large"] < waits["medium"] < waits["small"]
    assert (outcome.played.preempted, outcome.played.rejected) == (0, 0)
    judged(file)


def test_no_more_than_the_fewest_are_told_to_stop_for_a_large_gang(file: SqliteFile) -> None:
    outcome = kai.play(10, policy_of("default"), file)
    assert (outcome.evicted, outcome.least, outcome.started) == (8, 8, True)
    judged(file)


@pytest.mark.parametrize("sequence", armada.SEQUENCES, ids=lambda sequence: sequence.name)
def test_what_armada_expects_happens_at_its_instants(file: SqliteFile, sequence: armada.Sequence) -> None:
    outcome = armada.play(sequence, policy_of("default"), file)
    assert outcome.story == sequence.expected
    assert outcome.differ == 0
    judged(file)


def test_events_that_differ_are_counted(file: SqliteFile) -> None:
    sequence = armada.SEQUENCES[0]
    expected = {**sequence.expected, 60: {"end a": 2}, 61: {"start a": 1}}
    outcome = armada.play(msgspec.structs.replace(sequence, expected=expected), policy_of("default"), file)
    assert outcome.differ == 3  # one end too many, one start not there, one start not expected


def test_gangs_of_topology_stand_where_they_must_and_wait_no_longer(file: SqliteFile) -> None:
    load = kueue.cut(kueue.TAS, 1, 16)
    racks: dict[str, dict[str, int]] = {}
    outcome = kueue.play(load, policy_of("fifo"), file)
    groups: dict[str, JobSubmitted] = {}
    for _, data in read_admitted(file.path.parent):
        cycle = decode_cycle(data)
        groups.update({entry.job: entry for entry in cycle.inputs if isinstance(entry, JobSubmitted)})
        for event in cycle.decisions:
            if isinstance(event, InstanceBound):
                held = racks.setdefault(event.job, {})
                for place in event.placements:
                    rack = f"r{place.row // 64}"
                    held[rack] = held.get(rack, 0) + 1
    forms = [0, 0, 0]
    for name, held in racks.items():
        said = groups[name].request.constraints
        assert said
        if said.within:
            forms[0 if said.within[0].required else 1] += 1
            assert len(held) == 1
        else:
            forms[2] += 1
            assert max(held.values()) <= said.spread[0].skew
    assert min(forms) > 40
    assert outcome.admission_s["large"] <= 0.25
    assert (outcome.played.preempted, outcome.played.rejected) == (0, 0)
    judged(file)


@pytest.mark.parametrize("shape", shapes.SHAPES, ids=lambda shape: shape.name)
def test_every_pod_is_placed_and_no_gang_in_parts(file: SqliteFile, shape: shapes.Shape) -> None:
    small = shapes.cut(shape, 250)
    outcome = shapes.play(small, policy_of("default"), file)
    assert (outcome.bound, outcome.partial) == (small.measured, 0)
    assert bool(outcome.preempted) == shape.low
    judged(file)


def test_the_scoreboard_prints_ours_beside_the_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scoreboard", "--quick", "--board", "kai-reclaim"]) == 0
    assert "kai-reclaim  evictions / minimum, 10 nodes  default/2  1.0" in capsys.readouterr().out


def test_the_command_of_the_page_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, after = PAGE.read_text().partition("```console\n$ ")
    command, _, rest = after.partition("\n")
    assert run(command.split()[1:]) == 0
    assert capsys.readouterr().out.split() == rest.partition("```")[0].split()


def test_a_board_that_is_not_there_or_has_no_data_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scoreboard", "--board", "nothing"]) == 2
    said = capsys.readouterr().err
    assert [name for name in BOARDS if name not in said] == []
    for name in NEED_DATA:
        assert run(["scoreboard", "--board", name]) == 3
        assert "--data" in capsys.readouterr().err
