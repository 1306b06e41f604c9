"""Proposals: what a rule says of a device's health, with its evidence, and the message for `muster.gpu-health` that it becomes.

The id is the device, the rule and where the window starts, so that a proposal that is made again is the same one. Of the
message only node, uid, device and health count for a scheduler; the evidence stands in the reason, for people.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from muster.events.base import DeviceHealth
from muster.events.cloudevents import GPU_HEALTH, to_message
from muster.events.nodes import DeviceHealthChanged
from muster.telemetry.rules import Rule, Rules, told_xids
from muster.telemetry.windows import Device, State

SOURCE: Final = "muster:telemetry"
REASON_MAX: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """That a device be held to be in this health."""

    id: str
    """DEVICE/RULE/START, where the window starts in seconds since 1970."""
    node: str
    uid: str
    device: str
    health: DeviceHealth
    rule: str
    start_us: int
    window_s: int
    evidence: dict[str, int]
    """What was measured, how many samples told it, and what the rule holds from; of Xids how often each was counted."""
    reason: str

    def event(self) -> DeviceHealthChanged:
        """As it stands in the log, if a scheduler takes it."""
        return DeviceHealthChanged(node=self.node, uid=self.uid, device=self.device, health=self.health, reason=self.reason)

    def message(self) -> tuple[bytes, list[tuple[str, bytes]], bytes]:
        """Key, headers and value on `muster.gpu-health`. Its time is the window's end."""
        end_us = self.start_us + self.window_s * 1_000_000
        headers, value = to_message(GPU_HEALTH, self.event(), SOURCE, self.id, end_us)
        return self.node.encode(), headers, value


def propose(rules: Rules, rule: Rule, device: Device, state: State, value: int) -> Proposal:
    """What is proposed where a rule held in the window of this state of this device."""
    xids = told_xids(rules, rule, state.xids)
    what = xids or rule.reason
    said = f"{what}; {rule.signal} {_measured(rule, value)} in the {rule.window_s} s from {_time(state.start_us)}"
    reason = f"{said}, and {rule.name} holds from {rule.at_least} on"
    evidence = {"value": value, "at_least": rule.at_least, "samples": state.samples}
    evidence |= {f"xid_{code}": state.xids[code] for code in sorted(state.xids)}
    return _proposal(rule, device, state.start_us, rule.health, evidence, reason)


def propose_healthy(rule: Rule, device: Device, state: State) -> Proposal:
    """What is proposed where a rule that held has not done so for long enough."""
    reason = f"{rule.name} held last in the {rule.window_s} s from {_time(state.held_us)}, and no rule has since"
    evidence = {"value": state.measured(rule), "at_least": rule.at_least, "samples": state.samples, "held_us": state.held_us}
    return _proposal(rule, device, state.start_us, "healthy", evidence, reason)


def _proposal(rule: Rule, device: Device, start_us: int, health: DeviceHealth, evidence: dict[str, int], reason: str) -> Proposal:
    return Proposal(
        id=f"{device.uuid}/{rule.name}/{start_us // 1_000_000}",
        node=device.node,
        uid=device.uid,
        device=device.uuid,
        health=health,
        rule=rule.name,
        start_us=start_us,
        window_s=rule.window_s,
        evidence=evidence,
        reason=reason[:REASON_MAX],
    )


def _measured(rule: Rule, value: int) -> str:
    words = {"max": f"was {value}", "min": f"was never below {value}", "increase": f"grew by {value}"}
    return words.get(rule.measure, f"was there in {value} of a hundred samples")


def _time(at_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="seconds").replace("+00:00", "Z")
