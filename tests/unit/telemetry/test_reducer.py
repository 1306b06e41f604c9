"""Samples become proposals by windows of their own time: whatever order they come in, and however often."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.events.cloudevents import to_data
from muster.events.codec import decode_input, encode, encode_entry
from muster.events.telemetry import GpuSample, GpusSampled, Throttle, XidCount
from muster.telemetry.reducer import Reducer
from muster.telemetry.rules import Rules
from tests.unit.telemetry.samples import EPOCH_S, proposals, rules, sample, sampled, told

SECOND_US = 1_000_000


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    return rules(tmp_path_factory.mktemp("rules"))


def test_a_level_is_proposed_once_a_window_for_as_long_as_it_holds(four: Rules) -> None:
    quiet = [sampled(sample(at, xids=((13, 4),))) for at in range(0, 10, 2)]
    sick = [sampled(sample(at, xids=((13, 4), (79, 1)))) for at in range(10, 30, 2)]
    assert told(proposals(four, quiet + sick)) == [("xid-failed", "failed", 10), ("xid-failed", "failed", 20)]


def test_a_proposal_carries_its_evidence_and_an_id_of_device_rule_and_window(four: Rules) -> None:
    (made,) = proposals(four, [sampled(sample(1, xids=((79, 2), (95, 1), (13, 9)))), sampled(sample(2, xids=((79, 3),)))])
    assert made.id == f"GPU-1/xid-failed/{EPOCH_S}"
    assert made.evidence == {"value": 3, "at_least": 1, "samples": 2, "xid_79": 3, "xid_95": 1}
    assert made.reason.startswith("Xid 79: off the bus; Xid 95: uncontained; xid_failed was 3 in the 10 s from 2025-10-09T")
    assert (made.node, made.uid, made.device, made.health) == ("n1", "u1", "GPU-1", "failed")


def test_what_is_proposed_is_an_input_that_the_topic_takes_under_its_nodes_key(four: Rules) -> None:
    (made,) = proposals(four, [sampled(sample(1, xids=((79, 1),)))])
    key, headers, value = made.message()
    assert key == b"n1"
    assert dict(headers)["ce_id"] == made.id.encode()
    taken, _ = decode_input(to_data("muster.gpu-health", headers, value))
    assert taken == made.event()
    assert encode_entry(made.event())


def test_the_lowest_counts_where_the_whole_window_has_to_be_above(four: Rules) -> None:
    hot = [sampled(sample(at, temperature_millicelsius=95_000)) for at in range(0, 20, 5)]
    assert told(proposals(four, hot)) == [("hot", "degraded", 0)]
    once_cooler = [*hot[:2], sampled(sample(10, temperature_millicelsius=89_999)), hot[3]]
    assert told(proposals(four, once_cooler)) == []
    assert told(proposals(four, hot[:1])) == [], "one sample is fewer than samples_min"
    untold = [sampled(sample(at)) for at in range(0, 20, 5)]
    assert told(proposals(four, untold)) == []


def test_a_share_is_of_the_samples_that_tell_it(four: Rules) -> None:
    def made(*reasons: Throttle | None) -> list[tuple[str, str, int]]:
        cut = [None if each is None else (each,) for each in reasons]
        return told(proposals(four, [sampled(sample(at, throttle=each)) for at, each in enumerate(cut)]))

    assert made("hw_thermal", "gpu_idle", "hw_thermal", "gpu_idle") == [("slowed", "degraded", 0)]
    assert made("hw_thermal", "gpu_idle", "gpu_idle") == []
    assert made("hw_thermal", "gpu_idle", None, None, None) == [("slowed", "degraded", 0)]


def test_a_counter_counts_from_where_it_stood_in_the_window_before(four: Rules) -> None:
    def made(*values: tuple[int, int]) -> list[tuple[str, str, int]]:
        return told(proposals(four, [sampled(sample(at, pcie_replays=value)) for at, value in values]))

    assert made((0, 1_000_000), (9, 1_000_008)) == [], "what it stood at when it was seen first was not counted here"
    assert made((0, 100), (9, 109)) == [("replays", "degraded", 0)]
    assert made((5, 100), (15, 109)) == [("replays", "degraded", 10)], "between the last of one window and the first of the next"
    assert made((5, 100), (35, 109)) == [], "between them are two windows that nobody saw"


def test_a_counter_that_was_put_back_counts_from_zero(four: Rules) -> None:
    back = [sampled(sample(0, pcie_replays=50)), sampled(sample(5, pcie_replays=9))]
    assert told(proposals(four, back)) == [("replays", "degraded", 0)]
    small = [sampled(sample(0, pcie_replays=50)), sampled(sample(5, pcie_replays=8))]
    assert told(proposals(four, small)) == []
    rebooted = [sampled(sample(0, pcie_replays=50)), sampled(sample(5, pcie_replays=52), boot="b2")]
    assert told(proposals(four, rebooted)) == [("replays", "degraded", 0)], "52 since another boot"
    unknown = [sampled(sample(0, pcie_replays=50)), sampled(sample(5, pcie_replays=52), boot="")]
    assert told(proposals(four, unknown)) == []


def test_after_windows_enough_without_it_a_device_is_proposed_healthy_once(four: Rules) -> None:
    hot = [sampled(sample(at, temperature_millicelsius=95_000)) for at in range(0, 20, 5)]
    cool = [sampled(sample(at, temperature_millicelsius=60_000)) for at in range(20, 120, 5)]
    made = proposals(four, hot + cool)
    assert told(made) == [("hot", "degraded", 0), ("hot", "healthy", 40)]
    assert "held last in the 20 s from 2025-10-09T08:54:00Z" in made[1].reason


def test_a_device_is_not_well_again_while_another_rule_stands_against_it(four: Rules) -> None:
    def at(second: int) -> GpusSampled:
        temperature = 95_000 if second < 20 else 60_000
        replays = 0 if second < 10 else 10 * second
        return sampled(sample(second, temperature_millicelsius=temperature, pcie_replays=min(replays, 310)))

    made = told(proposals(four, [at(second) for second in range(0, 120, 5)]))
    assert [each for each in made if each[0] == "hot"] == [("hot", "degraded", 0), ("hot", "healthy", 60)]
    assert [each for each in made if each[0] == "replays"][-2:] == [("replays", "degraded", 30), ("replays", "healthy", 60)]


def test_who_is_not_heard_for_long_is_not_well_again_by_that(four: Rules) -> None:
    hot = [sampled(sample(at, temperature_millicelsius=95_000)) for at in range(0, 20, 5)]
    soon = [sampled(sample(at, temperature_millicelsius=60_000)) for at in range(80, 100, 5)]
    late = [sampled(sample(at, temperature_millicelsius=60_000)) for at in range(100, 200, 5)]
    assert told(proposals(four, hot + soon)) == [("hot", "degraded", 0), ("hot", "healthy", 80)]
    assert told(proposals(four, hot + late)) == [("hot", "degraded", 0)], "nobody can know any more what was before"


def test_a_failed_device_is_never_proposed_healthy(four: Rules) -> None:
    sick = [sampled(sample(at, xids=((79, 1),))) for at in range(0, 10, 2)]
    well = [sampled(sample(at, xids=())) for at in range(10, 300, 2)]
    assert told(proposals(four, sick + well)) == [("xid-failed", "failed", 0)]


def test_a_sample_later_than_allowed_is_dropped_and_counted(four: Rules) -> None:
    reducer = Reducer(four)
    assert reducer.take(sampled(sample(0, xids=()), sample(20, xids=()))) == []
    assert reducer.take(sampled(sample(9, xids=((79, 1),)))) == []
    assert reducer.finish() == []
    assert reducer.counts.late == 1
    assert reducer.counts.samples == 3


def test_a_window_is_told_of_only_when_nothing_allowed_can_come_any_more(four: Rules) -> None:
    reducer = Reducer(four)
    assert reducer.take(sampled(sample(3, xids=((79, 1),)))) == []
    assert reducer.take(sampled(sample(14.999, xids=()))) == []
    (made,) = reducer.take(sampled(sample(15, xids=())))
    assert told([made]) == [("xid-failed", "failed", 0)]


def test_a_sample_from_the_future_makes_no_other_one_late(four: Rules) -> None:
    reducer = Reducer(four)
    now_us = (EPOCH_S + 10) * SECOND_US
    assert reducer.take(sampled(sample(1_000_000, xids=())), appended_us=now_us) == []
    assert reducer.counts.ahead == 1
    assert reducer.take(sampled(sample(8, xids=((79, 1),))), appended_us=now_us) == []
    assert told(reducer.finish()) == [("xid-failed", "failed", 0)]


def test_devices_are_told_apart_and_so_are_nodes(four: Rules) -> None:
    messages = [
        sampled(sample(1, "GPU-1", xids=((79, 1),)), sample(1, "GPU-2", xids=())),
        sampled(sample(1, "GPU-3", xids=((95, 1),)), node="n2", uid="u2"),
    ]
    assert [(each.node, each.device) for each in proposals(four, messages)] == [("n1", "GPU-1"), ("n2", "GPU-3")]


def test_only_so_many_devices_and_samples_are_kept(four: Rules) -> None:
    reducer = Reducer(four, devices_max=10)
    for number in range(100):
        reducer.take(sampled(sample(number, f"GPU-{number}", xids=())))
    assert len(reducer._devices) <= 10
    assert reducer.counts.devices_forgotten == 90
    many = Reducer(four)
    for number in range(5000):
        many.take(sampled(sample(number / 2000, xids=())))
    (device,) = many._devices.values()
    assert len(device.waiting) <= 2000


EXTENT_S = 180
CUT: list[tuple[Throttle, ...] | None] = [None, (), ("hw_thermal",)]


@st.composite
def streams(draw: st.DrawFn) -> list[GpusSampled]:
    """What two devices of a node measured in three minutes: sick and well by turns, with gaps, resets and repeated times."""
    messages = []
    replays = {"GPU-1": 0, "GPU-2": 0}
    xids = 0
    for second in sorted(draw(st.lists(st.integers(0, EXTENT_S - 1), min_size=10, max_size=60))):
        for device in draw(st.sampled_from([("GPU-1",), ("GPU-2",), ("GPU-1", "GPU-2")])):
            replays[device] = draw(st.sampled_from([replays[device], replays[device] + 5, replays[device] + 30, 3]))
            xids += draw(st.sampled_from([0, 0, 0, 0, 1]))
            messages.append(
                sampled(
                    GpuSample(
                        device=device,
                        at_us=(EPOCH_S + second) * SECOND_US,
                        temperature_millicelsius=draw(st.sampled_from([None, 60_000, 95_000, 95_000])),
                        throttle=draw(st.sampled_from(CUT)),
                        pcie_replays=draw(st.sampled_from([None, replays[device], replays[device]])),
                        xids=() if not xids else (XidCount(code=79, count=xids),),
                    ),
                    boot=draw(st.sampled_from(["b1", "b1", "b2", ""])),
                )
            )
    return messages


def _disturbed(messages: list[GpusSampled], late_s: int, draw: st.DataObject) -> list[GpusSampled]:
    """The same, some of them twice, in an order in which none is later than it may be."""
    twice = [message for message in messages for _ in range(draw.draw(st.integers(1, 2)))]
    delays = draw.draw(st.lists(st.integers(0, late_s * SECOND_US), min_size=len(twice), max_size=len(twice)))
    order = sorted(range(len(twice)), key=lambda index: (twice[index].samples[0].at_us + delays[index], index))
    return [twice[index] for index in order]


@settings(deadline=None, max_examples=60)
@given(streams(), st.data())
def test_any_order_and_any_repeats_within_what_is_allowed_give_the_same_proposals(
    tmp_path_factory: pytest.TempPathFactory, messages: list[GpusSampled], data: st.DataObject
) -> None:
    four = rules(tmp_path_factory.getbasetemp())
    disturbed = _disturbed(messages, four.late_s, data)
    one, other = Reducer(four), Reducer(four)
    made = [proposal for message in messages for proposal in one.take(message)] + one.finish()
    again = [proposal for message in disturbed for proposal in other.take(message)] + other.finish()
    assert encode(sorted(made, key=lambda each: each.id)) == encode(sorted(again, key=lambda each: each.id))
    assert other.counts.late <= len(disturbed) - len(messages), "only repeats may come when what they tell was folded"


def _dense(random: Random) -> list[GpusSampled]:
    """What a device measured about every second: what may hold does so half of the time, so that a missing sample shows."""
    messages, replays, second = [], 0, 0.0
    hot = False
    while second < 240:
        second += random.choice((0.5, 1, 1.5, 2))
        replays = random.choice((replays + 3, replays + 5, replays + 9, 2))
        hot = hot != (random.random() < 0.1)
        cut: tuple[Throttle, ...] = ("hw_thermal",) if random.random() < 0.5 else ()
        told = sample(second, temperature_millicelsius=95_000 if hot else 60_000, throttle=cut, pcie_replays=replays)
        messages.append(sampled(told, boot=random.choice(("b1", "b1", "b1", "b2"))))
    return messages


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 600), st.sampled_from([0, 0, 7, 3600]))
def test_whoever_begins_later_comes_to_the_same_for_every_window_that_it_saw_whole(
    tmp_path_factory: pytest.TempPathFactory, seed: int, begin_tenths: int, behind_s: int
) -> None:
    """`behind_s`: so far the node's clock is behind the broker's."""
    four = rules(tmp_path_factory.mktemp("short"), late_s=1, shorter=5)
    begins_us = (EPOCH_S + behind_s) * SECOND_US + begin_tenths * SECOND_US // 10
    whole, later = Reducer(four), Reducer(four, begins_us=begins_us)
    made, again = [], []
    for message in _dense(Random(seed)):
        appended_us = message.samples[0].at_us + behind_s * SECOND_US
        made += whole.take(message, appended_us=appended_us)
        if appended_us >= begins_us:
            again += later.take(message, appended_us=appended_us)
    made += whole.finish()
    again += later.finish()
    assert set(map(encode, again)) <= set(map(encode, made)), "never one that is not so"
    reach_us = begins_us - behind_s * SECOND_US + four.reach_s() * SECOND_US
    owed = [each for each in made if each.start_us >= reach_us]
    assert len(owed) > 10
    assert set(map(encode, owed)) <= set(map(encode, again))
