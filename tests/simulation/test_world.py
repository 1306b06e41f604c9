"""Worlds from seeds: whatever goes wrong, everything comes to its end, there is one history, and nothing ran twice."""

import asyncio
import functools
import json
import logging
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from muster.cli.main import run
from muster.log.fsck import fsck
from muster.simulator.world import checks
from muster.simulator.world.process import MILLION, Process
from muster.simulator.world.world import Outcome, World, play

SEEDS = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())
SELECTED = range(SEEDS["selection"]["first"], SEEDS["selection"]["first"] + SEEDS["selection"]["count"])
KEPT = {kept["seed"]: kept["found"] for kept in SEEDS["kept"]}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What schedulers say of faults is expected here, and there is much of it."""
    caplog.set_level(logging.CRITICAL, "muster.scheduler")


@functools.cache
def played(seed: int) -> Outcome:
    """Each seed is played once."""
    return play(seed)


@pytest.mark.parametrize("seed", [*SELECTED, *KEPT])
def test_everything_comes_to_its_end(seed: int) -> None:
    outcome = played(seed)
    print(f"\n{outcome.line}")
    assert not outcome.problems, "\n".join([f"again: muster soak --seeds 1 --from {seed}", *outcome.problems])


def test_the_seeds_hold_trouble_of_every_kind() -> None:
    """What the seeds above are worth."""
    counts: Counter[str] = Counter()
    for seed in SELECTED:
        outcome = played(seed)
        counts.update(outcome.counts)
        assert outcome.faults > 3, f"nothing happened in seed {seed}"
        assert outcome.terms > 1
        assert outcome.counts["runs"] > 3
    print("\n" + "\n".join(f"{count:>8}  {what}" for what, count in sorted(counts.items())))
    kinds = [what for what in counts if what.startswith("fault: ")]
    assert len(kinds) >= 40
    deaths = [what for what in counts if what.startswith("scheduler killed at ")]
    assert len(deaths) >= 8, "schedulers died at few of their awaits"
    for what in (
        "fault: all schedulers stopped",
        "fault: leader stopped",
        "fault: leader to be stopped at an await",
        "fault: snapshot torn or altered",
        "fault: wall clock stepped",
        "scheduler left with 75",
        "scheduler left with 76",
        "appends doubled",
        "appends late",
        "appends that land much later",
        "appends unanswered",
        "answers to appends lost on the way",
        "beats with a partition unread",
        "messages doubled",
        "messages late",
        "messages lost",
        "reads behind the end",
    ):
        assert counts[what], f"no seed has: {what}"


STOPPED_AT = ("the ends of partitions", "inputs that came", "records that were read", "a beat")


@pytest.mark.parametrize("where", STOPPED_AT)
def test_a_leader_that_is_stopped_for_longer_than_a_lease_loses_no_node(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All others stand still too, so that nobody else leads, while the agents' reports are acknowledged."""
    world = World(0, tmp_path, ("_rebooted",))
    point = Process.point
    stops: list[int] = []

    async def stopping(self: Process, what: str) -> None:
        await point(self, what)
        now_us = self.timeline.now_us
        leads = [host for host in world.schedulers if host.process is self and host.leads]
        if what == where and leads and now_us > (stops[-1] + 130 * MILLION if stops else 60 * MILLION) and len(stops) < 3:
            stops.append(now_us)
            for host in world.schedulers:
                host.process.stop()
                self.timeline.after((100 if host.process is self else 108) * MILLION, host.process.resume)
            await asyncio.sleep(0)

    monkeypatch.setattr(Process, "point", stopping)
    try:
        outcome = world.play()
    finally:
        world.close()
    assert outcome.problems == []
    assert len(stops) == 3


def test_a_seed_is_one_history() -> None:
    seed = SELECTED[0]
    assert play(seed) == played(seed)


def test_soak_prints_what_happened_in_each_world(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["soak", "--seeds", "1", "--from", str(SELECTED[0]), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["problems"] == []
    assert said["faults"] == played(SELECTED[0]).faults
    assert said["steps"] == played(SELECTED[0]).steps


def test_soak_says_how_to_play_a_failing_world_again_and_keeps_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "check", lambda world: ["the sky fell"])
    assert run(["soak", "--seeds", "1", "--from", "3", "--keep", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "the sky fell" in said
    assert "muster soak --seeds 1 --from 3" in said
    kept = fsck(tmp_path / "seed-3")
    assert kept.halt is None
    assert kept.admitted > 10
