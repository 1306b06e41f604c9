"""What was told lately is kept: whoever asks for it gets the entries that the log holds, or is sent to the log."""

import pytest

from muster.events.codec import decode_cycle, decode_envelope
from muster.gateway import feed as feeds
from muster.gateway.feed import Batch, Feed, told
from tests.simulation.small_world import job_id, submission
from tests.unit.scheduler.driving import JOBS, Driver


@pytest.fixture
def records() -> list[bytes]:
    """A term and five jobs, a cycle each."""
    driver = Driver()
    for number in range(1, 6):
        driver.put(JOBS, submission(job_id(number)))
        driver.turn(after_s=1)
    assert len(driver.records) == 6
    return driver.records


def published(records: list[bytes], before: int = 0) -> Feed:
    """A feed that began after so many of them."""
    feed = Feed(before)
    for data in records[before:]:
        feed.publish(data, decode_cycle(data))
    return feed


def in_log(records: list[bytes], first: int, last: int, job: str = "") -> list[Batch]:
    return [batch for data in records[first - 1 : last] if (batch := told(decode_envelope(data), job)).entries]


@pytest.mark.parametrize("job", ["", job_id(2), job_id(5), "nobody"])
@pytest.mark.parametrize(("first", "last"), [(1, 6), (1, 1), (3, 3), (2, 5), (6, 6), (7, 6)])
def test_what_is_kept_is_what_the_log_holds(records: list[bytes], first: int, last: int, job: str) -> None:
    assert published(records).kept(first, last, job) == in_log(records, first, last, job)


def test_what_was_before_is_in_the_log_alone(records: list[bytes]) -> None:
    feed = published(records, before=3)
    assert feed.kept(3, 6) is None
    assert feed.kept(4, 6) == in_log(records, 4, 6)
    assert Feed(3).kept(3, 3) is None
    assert Feed(3).kept(4, 3) == []


def test_so_many_are_kept_and_no_more(records: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "KEPT_MAX", 2)
    feed = published(records)
    assert feed.kept(4, 6) is None
    assert feed.kept(5, 6) == in_log(records, 5, 6)
    monkeypatch.setattr(feeds, "KEPT_MAX_BYTES", len(records[5]))
    feed = published(records)
    assert feed.kept(5, 6) is None
    assert feed.kept(6, 6) == in_log(records, 6, 6)
    monkeypatch.setattr(feeds, "KEPT_MAX_BYTES", 1)
    assert published(records).kept(6, 6) is None
