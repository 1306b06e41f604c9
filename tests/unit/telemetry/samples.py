"""For tests of telemetry: samples, rules, and what a reducer makes of them in some order."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from muster.events.telemetry import GpuSample, GpusSampled, XidCount
from muster.telemetry.proposals import Proposal
from muster.telemetry.reducer import Reducer
from muster.telemetry.rules import Rules, load

EPOCH_S = 1_760_000_040
"""A whole minute."""

RULES = """
version = 1
late_s = {late_s}
[[rule]]
name = "xid-failed"
signal = "xid_failed"
measure = "max"
window_s = 10
at_least = 1
health = "failed"
at_once = true
reason = "an Xid"
source = "test"
[[rule]]
name = "hot"
signal = "temperature"
measure = "min"
window_s = 20
at_least = 90000
samples_min = 2
health = "degraded"
recovers_after = 2
reason = "hot"
source = "test"
[[rule]]
name = "replays"
signal = "pcie_replays"
measure = "increase"
window_s = 10
at_least = 9
health = "degraded"
recovers_after = 3
reason = "replays"
source = "test"
[[rule]]
name = "slowed"
signal = "throttle_hw_thermal"
measure = "share_percent"
window_s = 10
at_least = 50
samples_min = 2
health = "degraded"
reason = "slowed"
source = "test"
[xid.reset]
action = "RESET_GPU"
health = "failed"
what = "reset"
codes = {{ 79 = "off the bus", 95 = "uncontained" }}
[xid.application]
action = "RESTART_APP"
health = "healthy"
what = "the program"
codes = {{ 13 = "exception" }}
"""


def rules(folder: Path, late_s: int = 5, shorter: int = 1) -> Rules:
    """Four rules with short windows, one of each measure; the windows so many times shorter still."""
    path = folder / "rules.toml"
    text = RULES.format(late_s=late_s)
    for window_s in (10, 20):
        text = text.replace(f"window_s = {window_s}\n", f"window_s = {window_s // shorter}\n")
    path.write_text(text)
    return load(path)


def sample(at_s: float, device: str = "GPU-1", *, xids: tuple[tuple[int, int], ...] | None = None, **told: Any) -> GpuSample:
    """What this device measured so many seconds after the epoch; `xids` as pairs of number and count."""
    counted = None if xids is None else tuple(XidCount(code=code, count=count) for code, count in xids)
    return GpuSample(device=device, at_us=int((EPOCH_S + at_s) * 1_000_000), xids=counted, **told)


def sampled(*samples: GpuSample, node: str = "n1", uid: str = "u1", boot: str = "b1") -> GpusSampled:
    """A message of one node."""
    return GpusSampled(node=node, uid=uid, boot=boot, samples=samples)


def proposals(rules: Rules, messages: Iterable[GpusSampled], *, finish: bool = True) -> list[Proposal]:
    """What is proposed altogether."""
    reducer = Reducer(rules)
    made = [proposal for message in messages for proposal in reducer.take(message)]
    return made + (reducer.finish() if finish else [])


def told(made: Iterable[Proposal]) -> list[tuple[str, str, int]]:
    """Of each proposal the rule, the health, and when its window starts after the epoch."""
    return [(each.rule, each.health, each.start_us // 1_000_000 - EPOCH_S) for each in made]
