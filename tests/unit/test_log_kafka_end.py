"""What a Kafka log says where the broker names an end before what was read: for a moment that is no sign of a cut log."""

from types import SimpleNamespace
from typing import Any

import pytest

from muster.log import kafka
from muster.log.bus import Bus
from muster.log.errors import LogDamaged, LogUnreachable
from muster.log.kafka import KafkaLog


class Fetcher:
    """Names the ends that it was told, one after the other."""

    def __init__(self, *ends: int) -> None:
        self.ends = list(ends)

    async def end_offsets(self, partitions: list[Any], timeout_ms: int | None) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.ends.pop(0))


async def asked(monkeypatch: pytest.MonkeyPatch, *ends: int) -> KafkaLog:
    monkeypatch.setattr(kafka, "make_consumer", lambda *_, **__: SimpleNamespace(_fetcher=None))  # nothing connects
    log = KafkaLog(Bus.parse("kafka://127.0.0.1:1"), "muster.log", 0, writer=False, append_deadline_s=10.0)
    monkeypatch.setattr(log._asker, "_fetcher", Fetcher(*ends))
    log._seen = 7
    return log


async def test_a_new_leader_that_does_not_know_the_end_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await asked(monkeypatch, 6, 7, 6, 8)
    for _ in range(2):
        with pytest.raises(LogUnreachable, match="may not know yet"):
            await log.end()
        assert await log.end() >= 7


async def test_an_end_that_stays_before_what_was_read_is_a_cut_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "SHORT_S", 0.0)
    log = await asked(monkeypatch, 6)
    with pytest.raises(LogDamaged, match="was cut"):
        await log.end()
