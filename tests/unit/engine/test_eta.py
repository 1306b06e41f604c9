"""`eta`: what is planned, what could be, and what nobody knows."""

import pytest

from muster.engine.eta import eta
from muster.events.operations import Backfill, Policy
from tests.support.build import S, group, job, node
from tests.support.driver import Driver


def cell(backfill: Backfill | None = None, limit_s: int | None = 100) -> Driver:
    """A node of two devices; `held` has one of them, `big` wants both."""
    driver = Driver(Policy(kill_margin_us=0, backfill=backfill) if backfill is not None else Policy(kill_margin_us=0))
    driver.step(node("n1"), job("held", time_limit_us=None if limit_s is None else limit_s * S))
    driver.run("held")
    driver.step(job("big", group(gpus=2), time_limit_us=50 * S))
    return driver


def test_a_plan_names_its_start_and_its_nodes() -> None:
    driver = cell(Backfill())
    found = eta(driver.state, "big")
    assert (found.code, found.nodes, found.start_us) == ("planned", ("n1",), driver.attempt("held").started_us + 100 * S)
    assert found.text.startswith("planned in 1 min ")
    assert eta(driver.state, "held").code == "started"


def test_without_a_plan_it_is_an_estimate() -> None:
    planned, found = eta(cell(Backfill()).state, "big"), eta(cell().state, "big")
    assert (found.code, found.start_us) == ("estimated", planned.start_us)
    assert "the policy plans no starts" in found.text


def test_who_is_not_among_the_first_gets_an_estimate_behind_them() -> None:
    driver = cell(Backfill())
    driver.step(job("next", group(gpus=2), time_limit_us=50 * S))
    found = eta(driver.state, "next")
    assert (found.code, found.start_us) == ("estimated", driver.attempt("held").started_us + 150 * S)


def test_beyond_the_horizon_and_an_unknown_end_are_said() -> None:
    assert eta(cell(Backfill(horizon_us=50 * S)).state, "big").code == "beyond-horizon"
    assert eta(cell(Backfill(), limit_s=None).state, "big").code == "unknown-end"


def test_what_there_is_not_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        eta(cell().state, "nobody")
    with pytest.raises(KeyError, match="1 instances"):
        eta(cell().state, "big", 1)


def test_asking_changes_nothing() -> None:
    driver = cell(Backfill())
    before = driver.state.plans.upto()
    eta(driver.state, "big")
    assert driver.state.plans.upto() == before
    assert driver.step() == []
