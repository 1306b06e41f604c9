"""What a worker makes of single messages, with Faust's consumer and producer out of the way."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.events.cloudevents import TELEMETRY, to_message
from muster.events.telemetry import GpusSampled
from muster.log.bus import Bus
from muster.telemetry.looking_back import Begun
from muster.telemetry.reducer import Reducer
from muster.telemetry.worker import NotSent, Options, Worker
from muster.up.telemetry_worker import metrics_of
from tests.support.dashboard import parsed, value
from tests.unit.telemetry.samples import EPOCH_S, rules, sample, sampled


class Health:
    """The topic of proposals: takes them, or does not."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.away = False

    async def send(self, *, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> Any:
        answer = asyncio.get_running_loop().create_future()
        if self.away:
            answer.set_exception(RuntimeError("not enough replicas"))
        else:
            self.sent.append(dict(headers)["ce_id"].decode())
            answer.set_result(None)
        return answer


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def worker(tmp_path: Path, health: Any) -> Worker:
    made = Worker(Bus.parse("kafka://127.0.0.1:1"), rules(tmp_path), Options())
    made._health = health
    begin(made, Begun(start=0, committed=0, begins_us=0))
    return made


def begin(worker: Worker, begun: Begun) -> None:
    """As when the partition is given to it."""
    worker._parts = {0: begun}
    worker._reducers = {0: Reducer(worker.rules, begins_us=begun.begins_us, counts=worker.counts)}


def message(offset: int, of: GpusSampled, key: str = "n1", value: bytes | None = None) -> Any:
    headers, body = to_message(TELEMETRY, of, "test", "s-1", of.samples[0].at_us)
    timestamp = of.samples[0].at_us / 1e6
    told = {"partition": 0, "offset": offset, "headers": headers, "key": key.encode(), "timestamp": timestamp}
    return SimpleNamespace(value=body if value is None else value, **told)


SICK = sampled(sample(1, xids=((79, 1),)))
LATER = sampled(sample(30, xids=()))
ID = f"GPU-1/xid-failed/{EPOCH_S}"


async def test_a_message_counts_when_what_it_led_to_is_taken(worker: Worker, health: Health) -> None:
    await worker.take(message(0, SICK))
    await worker.take(message(1, LATER))
    assert health.sent == [ID]


async def test_its_metrics_say_what_became_of_samples_and_proposals(worker: Worker, health: Health) -> None:
    for offset, each in enumerate((SICK, SICK, LATER, SICK)):
        await worker.take(message(offset, each))
    await worker.take(message(4, SICK, value=b"{}"))
    worker._parts = {}  # how far the partition goes only a consumer knows
    page = parsed((await metrics_of(worker).page(""))[1].decode())
    counts = {labels["result"]: count for labels, count in page["muster_telemetry_samples_total"]}
    assert counts == {"taken": 2, "late": 1, "repeated": 1, "ahead": 0}
    assert value(page, "muster_telemetry_proposals_total", rule="xid-failed", health="failed") == 1
    assert value(page, "muster_telemetry_refused_total") == 1
    assert value(page, "muster_telemetry_devices") == 1
    assert value(page, "muster_build_info", program="telemetry") == 1


async def test_a_proposal_that_is_not_taken_ends_the_worker(worker: Worker, health: Health) -> None:
    health.away = True
    await worker.take(message(0, SICK))
    with pytest.raises(NotSent, match=f"muster.gpu-health did not take {ID}: not enough replicas"):
        await worker.take(message(1, LATER))


async def test_a_proposal_that_stands_on_the_topic_is_not_sent_again(worker: Worker, health: Health) -> None:
    worker._said = {ID: None}
    await worker.take(message(0, SICK))
    await worker.take(message(1, LATER))
    assert health.sent == []
    assert worker.repeated == 1


async def test_what_is_no_sample_is_passed_over(worker: Worker, health: Health, caplog: pytest.LogCaptureFixture) -> None:
    await worker.take(message(0, SICK, value=b"{}"))
    await worker.take(message(1, SICK, key="n2"))
    await worker.take(message(2, SICK, value=b"\xff"))
    empty = message(3, SICK)
    empty.headers, empty.key, empty.value = None, None, None
    await worker.take(empty)
    assert worker.refused == 4
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "muster.telemetry/0, offset 0, is passed over: samples: Object missing required field `node`"
    assert said[1].endswith("the message's key is b'n2'; it must be the node, 'n1'")
    await worker.take(message(4, SICK))
    await worker.take(message(5, LATER))
    assert health.sent == [ID]


async def test_what_was_fetched_before_the_worker_went_back_is_not_folded_before_what_it_went_back_for(
    worker: Worker, health: Health
) -> None:
    begin(worker, Begun(start=10, committed=12, begins_us=0))
    await worker.take(message(12, LATER))
    await worker.take(message(13, LATER))
    await worker.take(message(10, SICK))
    await worker.take(message(11, SICK))
    assert health.sent == []
    await worker.take(message(12, LATER))
    assert health.sent == [ID]


async def test_what_comes_of_a_partition_that_the_worker_does_not_have_is_nobodys(worker: Worker) -> None:
    other = message(0, SICK)
    other.partition = 1
    await worker.take(other)
    assert worker.refused == 0


@pytest.mark.parametrize(
    ("begun", "due"),
    [
        (Begun(start=0, committed=0, begins_us=0), [0, 5]),
        (Begun(start=5, committed=5, begins_us=0), [5, 6]),
        (Begun(start=5, committed=5, begins_us=0), [9]),
        (Begun(start=5, committed=9, begins_us=0), [5, 9]),
        (Begun(start=5, committed=9, begins_us=0), [8, 9, 10]),
    ],
)
def test_what_was_sought_is_due_and_all_that_follows(begun: Begun, due: list[int]) -> None:
    assert [begun.is_due(offset) for offset in due] == [True] * len(due)


def test_what_stands_behind_what_was_sought_is_not_due_yet() -> None:
    begun = Begun(start=5, committed=9, begins_us=0)
    assert [begun.is_due(offset) for offset in (9, 10, 4, 5, 9)] == [False, False, False, True, True]
