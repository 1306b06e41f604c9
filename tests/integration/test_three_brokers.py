"""A whole cell on three brokers, of which some fail: nothing that was accepted is lost, nothing runs twice, and it goes on.

The log and the topics have three copies, and two must have each record. Under a load of real tasks on two agents, by two
gateways and a client that asks again with the same id, one thing is done to the brokers, or to clocks. In between and
afterwards jobs that are submitted only then come to their end, what ran all the time has run on, and the log is judged by
`fsck`, by deciding everything again and by the second judge, and the runs by what the tasks wrote down.

All tests are of one cell's long life, in an order that comes from the seed that is printed; MUSTER_SEED sets it. A few are
drawn; MUSTER_SOAK=1 has all (`make soak`), as in `MUSTER_SOAK=1 python -m pytest tests/integration/test_three_brokers.py`.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator

import pytest

from muster.log.errors import LogUnreachable
from muster.log.reader import read_admitted
from tests.support.cell import until
from tests.support.disks import fill
from tests.support.kafka import Brokers
from tests.support.three import HOUR_S, Three, sleep, strike, three
from tests.support.wrong_clock import seen

SEED = int(os.environ.get("MUSTER_SEED", "0")) or (
    random.SystemRandom().randrange(1, 10**6) if "MUSTER_SOAK" in os.environ else 1
)
ALL = "MUSTER_SOAK" in os.environ
DRAWN = 3
LASTS_S = 8.0
"""So long what was done lasts, besides the time in which there is progress meanwhile."""

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="the tasks hold locks with flock (util-linux)")


def is_killed(cell: Three, node: int) -> None:
    cell.brokers.kill(node)
    cell.progress()
    cell.brokers.restart(node)


def is_stopped(cell: Three, node: int) -> None:
    cell.brokers.pause(node)
    cell.progress()
    sleep(LASTS_S)
    cell.brokers.resume(node)


def the_leader_of_the_log_is_killed(cell: Three) -> None:
    is_killed(cell, cell.leader_of("muster.log"))


def the_leader_of_the_log_is_stopped(cell: Three) -> None:
    is_stopped(cell, cell.leader_of("muster.log"))


def the_controller_is_killed(cell: Three) -> None:
    is_killed(cell, cell.brokers.controller())


def the_controller_is_stopped(cell: Three) -> None:
    is_stopped(cell, cell.brokers.controller())


def nobody_is_answered(cell: Three) -> None:
    """No quorum: clients are told to come again, nothing is accepted meanwhile, and the agents keep their tasks."""
    refused = cell.refused()
    until(lambda: cell.refused() > refused + 1, say="who submits is told to come again")
    accepted = len(cell.load.accepted)
    sleep(LASTS_S)
    assert len(cell.load.accepted) == accepted, "something was accepted that one broker of three has"
    assert cell.stands(), "what ran was not kept"
    with pytest.raises(LogUnreachable):
        list(read_admitted(cell.brokers.address))  # which is no empty log, nor one that ends early


def two_at_once(cell: Three) -> list[int]:
    """The log's leader, and another."""
    leader = cell.leader_of("muster.log")
    return [leader, leader % 3 + 1]


def two_are_killed_at_once(cell: Three) -> None:
    nodes = two_at_once(cell)
    cell.brokers.kill(*nodes)
    nobody_is_answered(cell)
    cell.brokers.restart(*nodes)


def two_are_stopped_at_once(cell: Three) -> None:
    nodes = two_at_once(cell)
    cell.brokers.pause(*nodes)
    nobody_is_answered(cell)
    cell.brokers.resume(*nodes)


def each_is_restarted_in_turn(cell: Three) -> None:
    for node in cell.brokers.nodes:
        cell.brokers.restart(node.id)
        cell.progress()
        cell.await_whole()


def the_disk_of_one_is_full(cell: Three) -> None:
    assert cell.brokers.small is not None
    filled = fill(cell.brokers.small)
    try:
        until(lambda: 2 not in cell.in_sync("muster.log"), say="the broker whose disk is full has not all of the log")
        cell.progress()
    finally:
        filled.unlink()
    cell.brokers.restart(2)


def clocks_of_schedulers_and_a_gateway_are_set_by_an_hour(cell: Three) -> None:
    """Forwards under a leader that then dies; backwards and forwards before a cold start; and right again."""
    leader = cell.leading()
    cell.shift(HOUR_S, leader.folder.name, "left")
    cell.progress()
    led = leader.led()
    strike(leader)
    cell.cell.leader(*cell.schedulers, above=led)
    cell.progress()
    for shift_s in (-HOUR_S, HOUR_S, 0):
        cell.shift(shift_s)
        led = cell.leading().led()
        for scheduler in cell.schedulers:
            strike(scheduler)
        strike(cell.gateways[1])
        cell.cell.leader(*cell.schedulers, above=led)
        cell.progress()
    for scheduler in cell.schedulers:
        assert seen(cell.clocks[scheduler.folder.name])["muster.up.bus_scheduler"] >= {-HOUR_S, HOUR_S, 0}


def the_clock_of_a_broker_is_set_by_an_hour(cell: Three) -> None:
    """Of whichever leads the jobs, which says when a submission came.

    It dies with its wrong clock and comes back with a right one. A clock that is set back under a broker that lives on is
    Kafka's own trouble: its timers stand still until the old time comes again, and until then it votes for no other controller.
    """
    clocks = cell.brokers.clocks
    assert clocks is not None
    for shift_s in (HOUR_S, -HOUR_S):
        node = cell.leader_of("muster.jobs")
        clocks.set(node, shift_s)
        try:
            cell.progress()
            assert cell.newest_s("muster.jobs") - time.time() == pytest.approx(shift_s, abs=HOUR_S / 2)
            sleep(LASTS_S)
            cell.brokers.kill(node)
        finally:
            clocks.set(node, 0)
        cell.progress()
        cell.brokers.restart(node)
        cell.await_whole()


TRIALS: list[Callable[[Three], None]] = [
    the_leader_of_the_log_is_killed,
    the_leader_of_the_log_is_stopped,
    the_controller_is_killed,
    the_controller_is_stopped,
    two_are_killed_at_once,
    two_are_stopped_at_once,
    each_is_restarted_in_turn,
    the_disk_of_one_is_full,
    clocks_of_schedulers_and_a_gateway_are_set_by_an_hour,
    the_clock_of_a_broker_is_set_by_an_hour,
]
PLAYED = random.Random(SEED).sample(TRIALS, len(TRIALS) if ALL else DRAWN)


@pytest.fixture(scope="module")
def cell(three_kafka: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    with three(tmp_path_factory.mktemp("cell"), three_kafka) as made:
        yield made


@pytest.mark.parametrize("happens", PLAYED, ids=lambda happens: happens.__name__)
def test_nothing_is_lost_nothing_runs_twice_and_it_goes_on_when(cell: Three, happens: Callable[[Three], None]) -> None:
    print(f"again: MUSTER_SEED={SEED} {'MUSTER_SOAK=1 ' * ALL}python -m pytest tests/integration/test_three_brokers.py")
    if happens is the_disk_of_one_is_full and cell.brokers.small is None:
        pytest.skip("no disk can be filled here: only root can make a small file system")
    if happens is the_clock_of_a_broker_is_set_by_an_hour and cell.brokers.clocks and cell.brokers.clocks.missing:
        pytest.skip(f"no clock of a broker can be set here: {cell.brokers.clocks.missing}")
    with cell.trial(happens.__name__, SEED):
        happens(cell)
