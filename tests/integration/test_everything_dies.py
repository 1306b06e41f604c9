"""A real stack under a seeded load for a minute, while its parts are killed and stopped at random moments.

It is played on a `muster up`, and on Kafka with two schedulers and two gateways: there for half the time in `make test`, and
for all of it in `make soak`.

Whatever dies when: no attempt runs twice, no two attempts run at once, nothing is left over, every job that was accepted
comes to its end once the trouble has ended, and there is one history.

Another seed: `MUSTER_SEED=7 python -m pytest tests/integration/test_everything_dies.py`. What it leaves behind stays in the
test's folder, and in `$MUSTER_KEEP` where that is set.
"""

import contextlib
import os
import shutil
import threading
import time
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.support.bus_up import BusUp
from tests.support.cell import free_port
from tests.support.kafka import bus_broker
from tests.support.trouble import (
    PATIENCE_S,
    POLICY,
    STRIKES,
    Load,
    Trouble,
    come_to_an_end,
    count,
    judge_log,
    judge_runs,
    keep,
    left_open,
    planted,
)
from tests.support.up import Up, until, up

SEEDS = tomllib.loads((Path(__file__).parent / "seeds.toml").read_text())
KEPT = [kept["seed"] for kept in SEEDS.get("kept", [])]
CHOSEN = int(os.environ.get("MUSTER_SEED", time.time_ns() % 1_000_000 if "MUSTER_SOAK" in os.environ else 1))


def prepare(stack: Up) -> None:
    """Set the policy of short spans while there is no node yet: agents keep the lease that they were promised."""
    with stack.ready() as client:
        assert client.put("/policy", json=POLICY).status_code == 202
    assert stack.stop() == 0


def begin(stack: Up) -> list[str]:
    """Wait until it is there with both its nodes; their names."""
    with stack.ready() as client:

        def both() -> list[str]:
            names = [node["node"] for node in client.get("/nodes").json()["nodes"]]
            return names if len(names) == 2 else []

        found: list[str] = until(both)
        return found


@pytest.mark.skipif(shutil.which("flock") is None, reason="the tasks hold locks with flock (util-linux)")
@pytest.mark.parametrize("seed", [*KEPT, CHOSEN])
def test_whatever_dies_nothing_runs_twice_nothing_is_lost_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    with up(tmp_path / "up", "--no-agent") as stack:
        prepare(stack)
    with up(tmp_path / "up", "--agents", "2", "--devices", "8xH100-80GB") as stack:
        everything_dies(stack, stack.folder, tmp_path, seed, float(SEEDS["played"]["seconds"]), later=(429,))


@pytest.mark.skipif(shutil.which("flock") is None, reason="the tasks hold locks with flock (util-linux)")
def test_the_same_holds_on_kafka_where_two_schedulers_take_turns(tmp_path: Path) -> None:
    length_s = float(SEEDS["played"]["seconds" if "MUSTER_SOAK" in os.environ else "seconds_on_kafka"])
    with bus_broker(tmp_path / "brokers") as broker:
        ports = (free_port(), free_port())
        with contextlib.closing(BusUp(tmp_path / "up", broker.address, ports)) as stack:
            stack.start()
            prepare(stack)
        with contextlib.closing(BusUp(tmp_path / "up", broker.address, ports, agents=2)) as stack:
            stack.start()
            everything_dies(stack, broker.address, tmp_path, CHOSEN, length_s, later=(404, 429))


def everything_dies(stack: Up, log: Path | str, tmp_path: Path, seed: int, length_s: float, later: tuple[int, ...]) -> None:
    """Load and trouble for so long; then everything comes to its end, and all is judged."""
    again = f"again: MUSTER_SEED={seed} python -m pytest {Path(__file__).name}"
    print(again)
    load = Load(stack, tmp_path / "load", seed, begin(stack), length_s, later=later)
    trouble = Trouble(stack, seed, length_s)
    enough = threading.Event()
    people = threading.Thread(target=load.run, args=(enough,))
    people.start()
    try:
        trouble.run()
    finally:
        enough.set()
        people.join(PATIENCE_S)
    assert not people.is_alive(), "what was asked is not answered"
    try:
        with stack.client() as client:
            gone = come_to_an_end(client, load)
        assert len(stack.left()) >= 4, "what runs is not seen"
        assert stack.stop() == 0
        left = until_none(stack)
        problems, cycles = judge_log(log)
        problems += judge_runs(cycles, load.place, load.accepted)
    except BaseException:
        with stack.client() as client:
            print(again, _open(client, load))
        if "MUSTER_KEEP" in os.environ:
            keep(tmp_path, Path(os.environ["MUSTER_KEEP"]))
        raise
    counts = count(cycles, load.place)
    counts["jobs that both nodes had failed"] = gone
    said = {**trouble.counts, **{f"asked: {what}": number for what, number in load.counts.items()}, **counts}
    print("\n".join(f"{number:>8}  {what}" for what, number in sorted(said.items())))
    problems = [*load.wrong, *(f"left over: {what}" for what in left), *problems]
    if problems and "MUSTER_KEEP" in os.environ:
        keep(tmp_path, Path(os.environ["MUSTER_KEEP"]))
    assert not problems, "\n".join([again, *problems])
    for part, how in STRIKES:
        assert trouble.counts[f"{part} {how}"] > 0, f"no {how} of {part}"
    for what in ("task: start", "task: end", "task: told", "asked: drain", "asked: cancel", "InstancePreempted", "NodeLost"):
        assert said.get(what, 0) > 0, f"there was no {what}"
    assert counts["terms"] > 1
    assert not planted(cycles, load.place, load.accepted, tmp_path / "planted"), "the judge does not see everything"


def until_none(stack: Up) -> list[str]:
    """What is left, after some patience: who was told to end may take a moment."""
    end = time.monotonic() + 10
    while (left := stack.left()) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _open(client: httpx.Client, load: Load) -> str:
    try:
        return str({id: (load.accepted[id], state) for id, state in left_open(client, load.accepted).items()})
    except httpx.TransportError as error:
        return f"the gateway does not answer: {error}"
