"""What is kept while samples are folded: of each rule of each device a window, a few numbers, and when the rule held last."""

from collections.abc import Mapping
from typing import Final

from muster.events.base import DeviceHealth
from muster.events.telemetry import GpuSample
from muster.telemetry.rules import Rule
from muster.telemetry.signals import Reader

SECOND_US: Final = 1_000_000
XIDS_MAX: Final = 64
NEVER_US: Final = 2**62
NONE: Final[dict[int, int]] = {}
"""Never written to."""


class Check:
    """A rule, and how its signal is read."""

    __slots__ = ("codes", "counter", "least", "read", "rule", "share", "window_us")

    def __init__(self, rule: Rule, read: Reader, xids: Mapping[int, DeviceHealth]) -> None:
        self.rule = rule
        self.read = read
        self.window_us = rule.window_s * SECOND_US
        self.counter = rule.measure == "increase"
        self.share = rule.measure == "share_percent"
        self.least = rule.measure == "min"
        self.codes = {code: None for code, health in xids.items() if rule.signal == f"xid_{health}"}

    def add(self, state: "State", sample: GpuSample, value: int, boot: str) -> None:
        """Take the next sample of the state's window."""
        state.samples += 1
        if self.counter:
            if state.last_us >= state.start_us - self.window_us and state.last_us >= 0:
                anew = value < state.last or (boot != state.last_boot and "" not in (boot, state.last_boot))
                state.value += value if anew else value - state.last
            state.last, state.last_us = value, sample.at_us
            state.last_boot = boot or state.last_boot
        elif self.share:
            state.value += value > 0
        elif state.samples == 1 or (value < state.value) == self.least:
            state.value = value
        if value and self.codes and sample.xids:
            if state.xids is NONE:
                state.xids = {}
            for each in sample.xids:
                if each.code in self.codes and len(state.xids) < XIDS_MAX:
                    state.xids[each.code] = max(each.count, state.xids.get(each.code, 0))


class State:
    """What is kept of one rule of one device."""

    __slots__ = ("held_us", "last", "last_boot", "last_us", "samples", "start_us", "value", "xids")

    def __init__(self) -> None:
        self.start_us = -1
        """Of the window that is open; -1 where none is."""
        self.samples = 0
        self.value = 0
        self.xids = NONE
        """Those that made the rule hold in the window; `NONE` until there are some."""
        self.last = 0
        """Where the counter stood last, when, and in which boot."""
        self.last_us = -1
        self.last_boot = ""
        self.held_us = -1
        """The start of the last window in which the rule held; -1 where that is long ago."""

    def begin(self, start_us: int) -> None:
        """Open a window."""
        self.start_us = start_us
        self.samples = self.value = 0
        self.xids = NONE

    def measured(self, rule: Rule) -> int:
        """What the rule compares."""
        return self.value * 100 // self.samples if rule.measure == "share_percent" else self.value


class Device:
    """What is kept of one device."""

    __slots__ = ("ends_us", "folded_us", "newest_us", "node", "states", "uid", "uuid", "waiting", "whole_from_us")

    def __init__(self, node: str, uid: str, uuid: str, whole_from_us: int, rules: int) -> None:
        self.node = node
        self.uid = uid
        self.uuid = uuid
        self.whole_from_us = whole_from_us
        """Of what is older, something may not have been read."""
        self.newest_us = 0
        self.folded_us = -1
        """Up to here everything is folded."""
        self.ends_us = NEVER_US
        """When the first of the open windows ends."""
        self.waiting: list[tuple[GpuSample, str]] = []
        """In the order of their times, each with the node's boot."""
        self.states = [State() for _ in range(rules)]
