"""Faults put into the scheduler on purpose: each is found by the tests that claim to find it."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from muster.cluster.state import State
from muster.events.base import Event
from muster.events.codec import decode_envelope, digest
from muster.events.levels import NodeReport
from muster.events.record import Envelope
from muster.log.admit import Admitted, Halt, Head, Void, judge
from muster.scheduler import core as core_module
from muster.scheduler.core import Core, Message
from muster.scheduler.recorder import Recorded, Recorder
from muster.scheduler.reports import Agents
from tests.simulation import small_world, test_kill_at_every_await, test_two_schedulers
from tests.unit.scheduler import test_levels

LEVELS: Any = test_levels.test_levels_and_repeats.hypothesis.inner_test  # type: ignore[attr-defined]
"""The property, for one list of actions."""


async def test_a_position_that_is_kept_before_the_append_loses_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that goes on where it had read, and not where the log says, is what Kafka's group offsets would be."""
    seek = small_world.TopicsInbox.seek
    taken: dict[str, int] = {}

    async def own_offsets(self: small_world.TopicsInbox, positions: Mapping[str, int]) -> None:
        await seek(self, taken)

    pop = small_world.TopicsInbox.pop

    def counted(self: small_world.TopicsInbox) -> None:
        message = self.first()
        assert message is not None
        taken[message.source] = message.offset + 1
        pop(self)

    monkeypatch.setattr(small_world.TopicsInbox, "seek", own_offsets)
    monkeypatch.setattr(small_world.TopicsInbox, "pop", counted)
    found = 0
    for kill in range(1, 66, 2):
        taken.clear()
        world = test_kill_at_every_await.small()
        world.acts_max = 400
        try:
            await test_kill_at_every_await.until_done(world, [kill])
            await test_kill_at_every_await.check(world)
        except (AssertionError, small_world.NoEnd):
            found += 1
    assert found > 3
    print(f"\nfound at {found} of 33 deaths")


async def test_a_record_of_a_replaced_leader_that_is_admitted_breaks_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The term is not looked at: whoever numbers rightly is heard."""

    def unfenced(head: Head, data: bytes, envelope: Envelope, entries: bool) -> Admitted | Void | Halt:
        verdict = judge(head, data, envelope, entries)
        if isinstance(verdict, Void) and verdict.reason == "its writer was replaced":
            own = digest(data)
            return Admitted(Head(head.cell, head.number + 1, head.term, own, head.recent), envelope)
        return verdict

    monkeypatch.setattr(core_module, "judge", unfenced)
    monkeypatch.setattr(core_module, "admit_own", lambda head, frame, data: unfenced(head, data, decode_envelope(data), True))
    found = 0
    for seed in range(test_two_schedulers.SEEDS):
        try:
            await test_two_schedulers.test_there_is_one_history(seed)
        except (AssertionError, BaseExceptionGroup):
            found += 1
    assert found > 3
    print(f"\nfound with {found} of {test_two_schedulers.SEEDS} seeds")


class Forgetful(dict[str, Any]):
    """Jobs of which nobody knows that they are there."""

    def __contains__(self, key: object) -> bool:
        return False


def test_a_recorder_that_does_not_look_for_repeats_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder.record

    def forgetful(self: Recorder, state: State, *arguments: Any) -> Recorded:
        known, state.jobs = state.jobs, Forgetful(state.jobs)
        try:
            return record(self, state, *arguments)
        finally:
            state.jobs = known

    monkeypatch.setattr(Recorder, "record", forgetful)
    with pytest.raises(AssertionError, match="stands twice"):
        LEVELS([("submit", 0), ("cycle", 0), ("double", 0), ("cycle", 0)])


def test_a_recorder_that_drops_a_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position moves over a message that was not recorded: nobody reads it again."""
    offer = Core.offer

    def lossy(self: Core, message: Message) -> None:
        if message.source.startswith("muster.jobs") and message.offset == 1:
            self.recorder.moved[message.source] = 2
        else:
            offer(self, message)

    monkeypatch.setattr(Core, "offer", lossy)
    with pytest.raises(KeyError):
        LEVELS([("submit", 0), ("submit", 0), ("cycle", 0)])


def test_a_report_that_is_taken_for_a_later_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node does not name is held to be missing, whatever it has applied."""
    differences = Agents.differences

    def hasty(self: Agents, state: State, report: NodeReport) -> list[Event]:
        return differences(self, state, msgspec.structs.replace(report, applied=2**53))

    monkeypatch.setattr(Agents, "differences", hasty)
    with pytest.raises(AssertionError, match="TaskMissing"):
        LEVELS([("act", 0), ("act", 1), ("cycle", 0), ("act", 0), ("submit", 0), ("cycle", 0), ("double", 2), ("cycle", 0)])
