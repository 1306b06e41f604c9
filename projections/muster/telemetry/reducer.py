"""From samples to proposals: a pure fold with no clock but the samples' own, and no input or output.

Ideal: of each device all samples are laid out in the order of their times, cut into windows, and each rule says of each window
whether it held. Where the ideal is left, and why it is still right: samples arrive in any order, some twice, some late. So
those of a device wait until the newest of it is `late_s` ahead of them, and are folded then, by their times; one that comes
later still is dropped and counted. Any order, and any number of repeats, in which none is later than that gives the same
proposals, byte for byte.

What a window makes of its samples depends on them and on the window before it (of a counter, where it stood), and whether a
device is proposed to be healthy on the windows back to where a rule last held, at most `Rules.reach_s` ago. So a fold that
begins anywhere comes to the same as one that began earlier, from `reach_s` after its beginning on: that is what a worker does
that is started again. It says nothing of windows that it may have seen in part only (`begins_us`).

A window is closed by later samples of its device and by nothing else: of a device that fell silent nothing more is said. That
is its node's business, whose silence the scheduler notices.

Bounded are the devices, the samples of each that wait, and what is kept of each rule, a few numbers.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from muster.events.entries import encode
from muster.events.telemetry import GpuSample, GpusSampled
from muster.telemetry.proposals import Proposal, propose, propose_healthy
from muster.telemetry.rules import AHEAD_S, Rules
from muster.telemetry.signals import reader
from muster.telemetry.windows import NEVER_US, SECOND_US, Check, Device

DEVICES_MAX: Final = 200_000
WAITING_MAX: Final = 2_000
"""So many samples of one device may wait; the oldest is folded when there are more."""
AHEAD_US: Final = AHEAD_S * SECOND_US


class Counts:
    """What became of samples."""

    __slots__ = ("ahead", "devices_forgotten", "late", "repeated", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.late = 0
        """They came when what they tell of had been folded: late, or repeated long after."""
        self.repeated = 0
        self.ahead = 0
        self.devices_forgotten = 0


class Reducer:
    """The fold of one stream of samples in which what is said of a node keeps its order, one partition of the topic."""

    def __init__(self, rules: Rules, *, begins_us: int = 0, devices_max: int = DEVICES_MAX, counts: Counts | None = None) -> None:
        """
        Args:
            rules: what is judged by.
            begins_us: what the broker took before this is not read, though there may be some; 0 where there is nothing before.
            devices_max: so many devices are known at most.
            counts: where it counts; else for itself.
        """
        xids = rules.xids()
        self.rules = rules
        self.counts = counts or Counts()
        self._checks = [Check(rule, reader(rule.signal, xids), xids) for rule in rules.rule]
        self._late_us = rules.late_s * SECOND_US
        self._stands_us = rules.stands_s() * SECOND_US
        self._begins_us = begins_us
        self._devices_max = devices_max
        self._devices: dict[tuple[str, str], Device] = {}

    @property
    def devices(self) -> int:
        """How many are known."""
        return len(self._devices)

    def take(self, sampled: GpusSampled, *, appended_us: int = 0) -> list[Proposal]:
        """The proposals that these samples lead to. `appended_us` is when the broker took them; 0 where that is not known."""
        proposals: list[Proposal] = []
        for sample in sampled.samples:
            self.counts.samples += 1
            if appended_us and sample.at_us > appended_us + AHEAD_US:
                self.counts.ahead += 1
                continue
            device = self._device(sampled, sample)
            self._keep(device, sample, sampled.boot)
            proposals += self._fold(device, device.newest_us - self._late_us)
        return proposals

    def finish(self) -> list[Proposal]:
        """The proposals of what is left, as if time had gone on: for samples of which no more come."""
        proposals: list[Proposal] = []
        for device in self._devices.values():
            longest_us = max(check.window_us for check in self._checks)
            proposals += self._fold(device, device.newest_us + longest_us + 1)
        return proposals

    def _device(self, sampled: GpusSampled, sample: GpuSample) -> Device:
        key = sampled.uid, sample.device
        device = self._devices.get(key)
        if device is None:
            if len(self._devices) >= self._devices_max:
                self._forget()
            # What came before it was at most so late, and at most so far ahead of the broker: either is enough.
            whole_from_us = min(sample.at_us + self._late_us, self._begins_us + AHEAD_US) + 1 if self._begins_us else -NEVER_US
            device = self._devices[key] = Device(sampled.node, sampled.uid, sample.device, whole_from_us, len(self._checks))
        device.node = sampled.node
        return device

    def _forget(self) -> None:
        """Those that were silent for longest, a tenth of all: what is kept of them is nothing that counts any more."""
        oldest = sorted(self._devices.items(), key=lambda item: (item[1].newest_us, item[0]))
        for key, _ in oldest[: max(1, self._devices_max // 10)]:
            del self._devices[key]
            self.counts.devices_forgotten += 1

    def _keep(self, device: Device, sample: GpuSample, boot: str) -> None:
        """Let it wait at its place, unless it is late or there already. Of two that differ at one time always the same counts."""
        if sample.at_us <= device.folded_us:
            self.counts.late += 1
            return
        waiting = device.waiting
        at = bisect_left(waiting, sample.at_us, key=_at)
        if at < len(waiting) and waiting[at][0].at_us == sample.at_us:
            self.counts.repeated += 1
            if (encode(sample), boot) < (encode(waiting[at][0]), waiting[at][1]):
                waiting[at] = sample, boot
        else:
            waiting.insert(at, (sample, boot))
        device.newest_us = max(device.newest_us, sample.at_us)

    def _fold(self, device: Device, before_us: int) -> list[Proposal]:
        """Fold what is older than this, and say of each window that ends by then what is to be said."""
        proposals: list[Proposal] = []
        waiting = device.waiting
        ready = bisect_left(waiting, before_us, key=_at)
        ready = max(ready, len(waiting) - WAITING_MAX)
        for sample, boot in waiting[:ready]:
            if sample.at_us >= device.ends_us:
                proposals += self._close(device, sample.at_us)
            self._add(device, sample, boot)
            device.folded_us = sample.at_us
        del waiting[:ready]
        device.folded_us = max(device.folded_us, before_us - 1)
        if before_us >= device.ends_us:
            proposals += self._close(device, before_us)
        return proposals

    def _add(self, device: Device, sample: GpuSample, boot: str) -> None:
        for check, state in zip(self._checks, device.states, strict=True):
            value = check.read(sample)
            if value is None:
                continue
            if state.start_us < 0:
                state.begin(sample.at_us - sample.at_us % check.window_us)
                device.ends_us = min(device.ends_us, state.start_us + check.window_us)
            check.add(state, sample, value, boot)

    def _close(self, device: Device, by_us: int) -> list[Proposal]:
        """Say of the windows that end by then what is to be said, in the order of their ends.

        Of those that end together, all that hold are known before any device is held to be well again.
        """
        ended = [
            (state.start_us + check.window_us, index)
            for index, (check, state) in enumerate(zip(self._checks, device.states, strict=True))
            if state.start_us >= 0 and state.start_us + check.window_us <= by_us
        ]
        ended.sort()
        proposals: list[Proposal] = []
        for end_us, indexes in _together(ended):
            quiet = []
            for index in indexes:
                check, state = self._checks[index], device.states[index]
                if state.samples < check.rule.samples_min or state.start_us - check.window_us < device.whole_from_us:
                    continue
                value = state.measured(check.rule)
                if value >= check.rule.at_least:
                    state.held_us = state.start_us
                    proposals.append(propose(self.rules, check.rule, device, state, value))
                else:
                    quiet.append(index)
            for index in quiet:
                if self._well_again(device, index, end_us):
                    check, state = self._checks[index], device.states[index]
                    proposals.append(propose_healthy(check.rule, device, state))
                    state.held_us = -1
            for index in indexes:
                device.states[index].start_us = -1
        both = zip(self._checks, device.states, strict=True)
        ends = [state.start_us + check.window_us for check, state in both if state.start_us >= 0]
        device.ends_us = min(ends, default=NEVER_US)
        return proposals

    def _well_again(self, device: Device, index: int, end_us: int) -> bool:
        """Whether a rule that held does so no longer, and no other one stands against the device."""
        check, state = self._checks[index], device.states[index]
        windows = check.rule.recovers_after
        if state.held_us < 0 or not windows:
            return False
        since = (state.start_us - state.held_us) // check.window_us
        if since < windows:
            return False
        if since > 2 * windows or end_us - self._stands_us < device.whole_from_us:
            state.held_us = -1  # that, or what stands against it, is too long ago for everybody to know
            return False
        for other, (another, theirs) in enumerate(zip(self._checks, device.states, strict=True)):
            if other != index and theirs.held_us >= 0:
                stands_us = theirs.held_us + another.window_us * (1 + max(1, another.rule.recovers_after))
                if stands_us > end_us:
                    return False
        return True


def _at(waiting: tuple[GpuSample, str]) -> int:
    return waiting[0].at_us


def _together(ended: list[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """Rules by the end of their windows."""
    at = 0
    while at < len(ended):
        end_us = ended[at][0]
        same = [index for end, index in ended[at:] if end == end_us]
        yield end_us, same
        at += len(same)
