"""An agent whose wall clock is an hour off, or is set while it runs, does what others do: it goes by no date.

Its supervisors have the same clock. What is measured here is measured by this process, whose clock is right.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from muster.agent.slots import now_us, read_slot
from muster.events.codec import open_envelope
from muster.events.decisions import InstanceStarted, NodeLost, NodeSilent, StopOrdered
from muster.log.reader import read_admitted
from muster.replay.audit import audit
from muster.verify import verify
from tests.support.agents import Gateway, Node, log_now_us, sleepers, task
from tests.support.gateway import job
from tests.support.up import until, up
from tests.support.wrong_clock import seen, start

HOUR_S = 3600
S = 1_000_000
SET_TO_S = (HOUR_S, -HOUR_S, 400 * 24 * HOUR_S, 0)


@contextlib.contextmanager
def agent(gateway: Gateway | str, place: Path, shift_s: int, name: str = "n1") -> Iterator[tuple[Node, Path]]:
    """An agent whose clock is so wrong, and the file that says so."""
    clock = place.with_suffix(".clock")
    clock.write_text(str(shift_s))
    node = Node(gateway, place, "--devices", "2xH100-80GB", name=name, start=start(clock))
    node.start()
    try:
        yield node, clock
        assert shift_s in seen(clock)["agent"]
        assert shift_s in seen(clock)["supervisor"]
    except BaseException:
        print(node.said.read_text())
        raise
    finally:
        node.end()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    found = Gateway()
    yield found
    found.close()


@pytest.mark.parametrize("shift_s", [HOUR_S, -HOUR_S])
def test_grace_and_time_limit_are_kept_by_a_clock_that_nobody_sets(tmp_path: Path, gateway: Gateway, shift_s: int) -> None:
    stubborn = "trap '' TERM; sleep 1301 & wait; wait"
    with agent(gateway, tmp_path / "agent", shift_s) as (_, clock):
        until(lambda: gateway.spec)
        limited = task("sleep", "1302", job="limited", time_limit_us=S)
        gateway.assign(limited, task("sh", "-c", stubborn))
        gateway.reaches("running")
        gateway.reaches("running", job="limited")
        begun_us = now_us()
        until(lambda: len(sleepers("1301")) == 1)
        told_us = now_us()
        kill_at_us = log_now_us() + 2 * S
        gateway.assign(limited, task("sh", "-c", stubborn, phase="stop", kill_at_us=kill_at_us))
        assert gateway.reaches("exited").code == -9
        assert now_us() >= told_us + 2 * S, "it was killed before its grace was over"
        ended = gateway.reaches("exited", job="limited")
        assert "time limit" in ended.reason
        assert now_us() >= begun_us + S
        assert seen(clock)["supervisor"] == {shift_s}


@pytest.mark.parametrize("shift_s", [HOUR_S, -HOUR_S])
def test_a_lease_is_kept_by_a_clock_that_nobody_sets(tmp_path: Path, gateway: Gateway, shift_s: int) -> None:
    gateway.lease_us = 5 * S
    with agent(gateway, tmp_path / "agent", shift_s) as (node, _):
        until(lambda: gateway.spec)
        gateway.assign(task("sleep", "1303", job="leased"))
        until(lambda: sleepers("1303"))
        gateway.away = True
        until(lambda: not sleepers("1303"))
        lease = read_slot(str(node.data / "lease"))
        assert lease is not None
        assert now_us() >= lease["until_us"], "it was killed before its lease had ended"
        gateway.away = False
        assert "the lease ended" in gateway.reported("exited", job="leased").reason


def test_a_clock_that_is_set_while_tasks_run_ends_none_and_reorders_no_report(tmp_path: Path, gateway: Gateway) -> None:
    with agent(gateway, tmp_path / "agent", 0) as (node, clock):
        until(lambda: gateway.spec)
        long = task("sleep", "1304", job="long", time_limit_us=1000 * S)
        gateway.assign(long)
        gateway.reaches("running", job="long")
        until(lambda: sleepers("1304"))
        [pid] = sleepers("1304")
        for number, shift_s in enumerate(SET_TO_S):
            clock.write_text(str(shift_s))
            gateway.assign(long, task("sh", "-c", "exit 3", job=f"short-{number}"))
            assert gateway.reaches("exited", job=f"short-{number}").code == 3
            node.kill()
            heard = len(gateway.reports)
            node.start()
            until(partial(gateway.applied_after, heard))
            assert gateway.reaches("running", job="long").attempt == 1
        assert seen(clock)["agent"] == {0, *SET_TO_S}
        assert sleepers("1304") == [pid]
        sequences = [report.sequence for report in gateway.reports]
        assert sequences == sorted(set(sequences))


def test_nodes_whose_clocks_differ_by_two_hours_run_a_gang_and_keep_its_time_limit(tmp_path: Path) -> None:
    with up(tmp_path / "up", "--no-agent") as stack, stack.ready() as client:
        url = stack.url.removesuffix("/v1")
        with (
            agent(url, tmp_path / "ahead", HOUR_S, "ahead") as (ahead, clock),
            agent(url, tmp_path / "behind", -HOUR_S, "behind"),
        ):
            until(lambda: len(client.get("/nodes").json()["nodes"]) == 2)
            groups = [{"count": 4, "min": 4, "gpus": 1}]
            gang = job("gang", groups=groups, command=("sh", "-c", "sleep 0.3; exit 0"))
            limited = job("limited", groups=groups, command=("sleep", "1305"))
            limited["request"]["time_limit_us"] = 2 * S
            for body in (gang, limited):
                assert client.post("/jobs", json=body).status_code == 202
            until(lambda: client.get(f"/jobs/{gang['job']}").json()["job"]["state"] == "finished")
            until(lambda: client.get(f"/jobs/{limited['job']}").json()["job"]["state"] == "running")
            clock.write_text(str(-5 * HOUR_S))
            until(lambda: client.get(f"/jobs/{limited['job']}").json()["job"]["state"] == "failed")
            shown = client.get(f"/jobs/{limited['job']}").json()
            assert [element["attempts"] for element in shown["elements"]] == [1]
            assert ahead.left() == []
        assert stack.stop() == 0
    cycles = [open_envelope(envelope) for envelope, _ in read_admitted(tmp_path / "up")]
    assert audit(tmp_path / "up").difference is None
    assert list(verify(cycles)) == []
    entries = [(cycle.at_us, event) for cycle in cycles for event in (*cycle.inputs, *cycle.decisions)]
    assert not [event for _, event in entries if isinstance(event, (NodeSilent, NodeLost))]
    [begun] = [at for at, event in entries if isinstance(event, InstanceStarted) and event.job == limited["job"]]
    [stopped] = [at for at, event in entries if isinstance(event, StopOrdered) and event.job == limited["job"]]
    assert 2 * S <= stopped - begun < HOUR_S * S
