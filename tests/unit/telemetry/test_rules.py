"""Rules are data: those that come with Muster are as NVIDIA says, and a file that cannot be followed is refused by its key."""

from pathlib import Path

import pytest

from muster.events.telemetry import THROTTLES, GpuSample
from muster.telemetry.rules import FILE, BadRules, Rules, judge, load, usual
from muster.telemetry.signals import SIGNALS, value_of
from tests.unit.telemetry.samples import RULES, rules, sample

RESET = {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
"""Immediate action RESET_GPU in NVIDIA's Xid Catalog."""
RESTART = {79, 151}
"""RESTART_BM and RESTART_VM."""
PROGRAM = {8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 80, 86, 94, 96, 139}
"""Some of RESTART_APP."""


def test_an_xid_after_which_nvidia_says_reset_or_restart_fails_its_device_and_no_other_one_does() -> None:
    xids = usual().xids()
    assert {code for code, health in xids.items() if health == "failed"} == RESET | RESTART


def test_an_xid_of_a_program_leaves_its_device_as_it_is() -> None:
    xids = usual().xids()
    assert {xids[code] for code in PROGRAM} == {"healthy"}
    for code in PROGRAM:
        assert judge(usual(), sample(0, xids=((code, 100),))) is None


def test_every_rule_that_comes_with_muster_has_a_source_and_none_looks_back_further_than_an_hour() -> None:
    for rule in usual().rule:
        assert rule.source
    assert usual().reach_s() <= 3600, "a worker reads so far back when it is started"


def test_of_one_sample_the_worst_that_it_tells_counts() -> None:
    both = sample(0, ecc_volatile_double=2, xids=((79, 1), (13, 5)))
    found = judge(usual(), both)
    assert found is not None
    assert (found.health, found.reason) == ("failed", "Xid 79: the GPU has fallen off the bus")
    found = judge(usual(), sample(0, ecc_volatile_double=2))
    assert found is not None
    assert (found.rule, found.health) == ("ecc-double-bit", "degraded")
    assert "ecc_volatile_double is 2" in found.reason
    assert judge(usual(), sample(0, ecc_volatile_double=0, remap_failed=False, xids=())) is None
    assert judge(usual(), sample(0)) is None
    failed = judge(usual(), sample(0, remap_failed=True, ecc_volatile_double=1))
    assert failed is not None
    assert (failed.rule, failed.health) == ("row-remap-failed", "failed")


def test_what_is_no_number_of_a_sample_is_not_told_and_a_flag_is_one_or_nothing() -> None:
    xids = usual().xids()
    empty = GpuSample(device="g", at_us=1)
    assert {value_of(signal, empty, xids) for signal in SIGNALS} == {None}
    full = sample(0, throttle=("hw_thermal",), remap_failed=True, remap_pending=False, xids=((79, 2), (95, 1), (74, 4)))
    assert value_of("throttle_hw_thermal", full, xids) == 1
    assert value_of("throttle_sw_power_cap", full, xids) == 0
    assert value_of("remap_failed", full, xids) == 1
    assert value_of("remap_pending", full, xids) == 0
    assert value_of("xid_failed", full, xids) == 3
    assert value_of("xid_degraded", full, xids) == 4
    assert len([signal for signal in SIGNALS if signal.startswith("throttle_")]) == len(THROTTLES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('signal = "temperature"', 'signal = "warmth"'), "rule[1].signal: 'warmth' is none; there are temperature"),
        (("window_s = 20", "window_s = 0"), "rule[1].window_s: Expected `int` >= 1"),
        (("window_s = 20", 'window_s = "20"'), "rule[1].window_s: Expected `int`, got `str`"),
        (('measure = "min"', 'measure = "mean"'), "rule[1].measure: Invalid enum value 'mean'"),
        (('health = "failed"\nat_once', 'health = "healthy"\nat_once'), "rule[0].health: Invalid enum value 'healthy'"),
        (('name = "hot"', 'name = "xid-failed"'), "rule[1].name: 'xid-failed' is another rule's too"),
        (('name = "hot"', 'name = "Too Hot"'), "rule[1].name: Expected `str` matching"),
        (('source = "test"', ""), "rule[0]: Object missing required field `source`"),
        (("samples_min = 2", "sample_min = 2"), "rule[1]: Object contains unknown field `sample_min`"),
        (
            ("recovers_after = 2", "at_once = true"),
            "rule[1].at_once: one sample tells no min; only a max may be reported at once",
        ),
        (("at_least = 50", "at_least = 101"), "rule[3].at_least: no share is 101 of a hundred"),
        (("13 = ", "79 = "), "xid.application.codes.79: stands in xid.reset too"),
        (("13 = ", "thirteen = "), "xid.application.codes: 'thirteen' is no number of an Xid"),
        (("version = 1", "version = 2"), "version: must be 1, not 2"),
        (("late_s = 5", "late_s = -1"), "late_s: Expected `int` >= 0"),
        (("[[rule]]", "[[rule"), "is no TOML"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused_in_one_sentence_that_names_the_key(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    text = RULES.format(late_s=5)
    assert change[0] in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(change[0], change[1], 1))
    with pytest.raises(BadRules) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(BadRules, match="cannot be read: No such file"):
        load(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadRules, match="it is no text"):
        load(tmp_path / "bytes.toml")


def test_a_file_of_ones_own_takes_the_place_of_the_usual_one(tmp_path: Path) -> None:
    mine = rules(tmp_path)
    assert isinstance(mine, Rules)
    assert [rule.name for rule in mine.rule] == ["xid-failed", "hot", "replays", "slowed"]
    assert load(FILE) == usual()
