"""The policies that are shipped: each can be set, says what it was tuned on, and leaves alone what is the cell's."""

import re
from importlib.resources import files

import msgspec
import pytest

from muster.engine.policies import unknown
from muster.events.operations import Policy
from muster.scheduler.shipped import STEERING, Shipped, named, shipped

BOARDS = re.compile(r"lublin|openb|kueue|kai|armada|sdsc|hpc2n", re.IGNORECASE)


@pytest.mark.parametrize("each", shipped(), ids=lambda each: f"{each.name}-{each.version}")
def test_each_shipped_policy_can_be_set_and_says_what_it_was_tuned_on(each: Shipped) -> None:
    assert unknown(each.policy) == ""
    assert (each.policy.name, each.policy.version) == (each.name, each.version)
    assert len(each.about) > 20
    assert each.tuned_on


def test_the_names_of_the_house_are_there_and_each_version_once() -> None:
    names = [(each.name, each.version) for each in shipped()]
    assert len(dict.fromkeys(names)) == len(names)
    for name in ("fifo", "fair", "packing", "backfill-easy", "backfill-conservative", "default"):
        assert named(name) is not None


def test_the_default_of_old_logs_decides_as_it_did_and_the_shipped_one_is_newer() -> None:
    old, new = named("default/1"), named("default")
    assert old is not None
    assert old.policy == Policy()
    assert new is not None
    assert new.version == 2
    assert named("default/3") is None


def test_no_number_names_a_list_that_is_played_against_others() -> None:
    assert BOARDS.search(files("muster.scheduler").joinpath("policies.toml").read_text()) is None


def test_switching_leaves_what_is_the_cell_s() -> None:
    cell = Policy(name="mine", queues=("red", "blue"), lease_us=7, strict=True)
    easy = named("backfill-easy")
    assert easy is not None
    switched = easy.onto(cell)
    assert (switched.name, switched.queues, switched.lease_us, switched.strict) == (
        "backfill-easy",
        ("red", "blue"),
        7,
        msgspec.UNSET,
    )
    assert [name for name in STEERING if getattr(switched, name) != getattr(easy.policy, name)] == []


def test_strict_order_and_plans_are_not_said_together() -> None:
    easy = named("backfill-easy")
    assert easy is not None
    assert unknown(msgspec.structs.replace(easy.policy, strict=True)).startswith("policy.strict: ")
