"""The state as it was at a cycle."""

from pathlib import Path

import pytest

from muster.cluster import snapshot
from muster.cluster.state import State
from muster.events.codec import decode_envelope
from muster.log.errors import LogMissing
from muster.log.sqlite import SqliteLog
from muster.replay.travel import NoSuchCycle, fold_to, state_at
from tests.simulation.small_world import job_id, report, spec, submission
from tests.unit.scheduler.driving import JOBS, NODES, Driver


def history() -> tuple[list[bytes], list[str]]:
    """Records, and the state's digest after each."""
    driver = Driver()
    digests = [snapshot.digest(driver.core.state)]
    driver.put(NODES, report("n1", spec=spec("n1")))
    driver.turn()
    digests.append(snapshot.digest(driver.core.state))
    for number in range(3):
        driver.put(JOBS, submission(job_id(number)))
        driver.turn(after_s=1)
        digests.append(snapshot.digest(driver.core.state))
    return driver.records, digests


def test_the_fold_stopped_earlier_is_the_state_as_it_was() -> None:
    records, digests = history()
    envelopes = [(decode_envelope(data), data) for data in records]
    assert [snapshot.digest(fold_to(envelopes, number)) for number in range(1, 6)] == digests
    assert snapshot.digest(fold_to(envelopes)) == digests[-1]


@pytest.mark.parametrize("number", [0, -1, 6, 99])
def test_a_cycle_that_the_log_does_not_have_is_named(number: int) -> None:
    records, _ = history()
    with pytest.raises(NoSuchCycle, match=rf"{number}.* 1 to 5"):
        fold_to([(decode_envelope(data), data) for data in records], number)


def test_an_empty_log_has_no_state() -> None:
    with pytest.raises(NoSuchCycle, match="empty"):
        fold_to([])


async def test_a_log_in_a_folder_is_read(tmp_path: Path) -> None:
    records, digests = history()
    log = SqliteLog.open(tmp_path, "main", writer=True)
    for data in records:
        await log.append(data)
    await log.close()
    assert snapshot.digest(state_at(tmp_path, 2)) == digests[1]
    assert snapshot.digest(state_at(tmp_path)) == digests[-1]
    assert isinstance(state_at(tmp_path), State)


def test_a_folder_without_a_log_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LogMissing):
        state_at(tmp_path, 1)
