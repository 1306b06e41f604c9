"""Each invariant finds the state in which it does not hold."""

from collections.abc import Callable

import pytest

from muster.cluster.check import BrokenInvariant, check
from muster.cluster.invariants import check_invariants, check_rebuild
from tests.support.build import S, group, job, node
from tests.support.driver import Driver


def cell() -> Driver:
    """Something of everything."""
    driver = Driver()
    driver.step(node("a", 2), node("b", 1), node("c", 1))
    driver.step(job("other", priority=9))
    driver.run("other")
    driver.step(job("run", group(count=2), grace_us=100 * S))
    driver.run("run")
    driver.step(job("start"), job("wait", group(gpus=2)), job("high", group(gpus=2), priority=4))
    return driver


def spoil(what: str, driver: Driver) -> None:
    """Make one thing untrue."""
    state = driver.state
    attempt = driver.attempt("run")
    if what == "open":
        driver.job("wait").open += 1
    elif what == "held":
        attempt.held += 1
    elif what == "phase":
        driver.instance("other").phase = "starting"
    elif what == "attempt":
        driver.instance("other").phase = "pending"
    elif what == "row":
        driver.node("a").row = 1
    elif what == "free":
        driver.node("b").memory_free += 1
    elif what == "devices":
        driver.node("b").device_free[0] += 1
    elif what == "pending":
        state.pending.count += 1
    elif what == "total":
        state.pending_total -= 1
    elif what == "listed":
        next(iter(attempt.tasks.values())).holding = False
    elif what == "nominated":
        state.nominations["high", 0].instance.phase = "running"


@pytest.mark.parametrize(
    "what",
    ["open", "held", "phase", "attempt", "row", "free", "devices", "pending", "total", "listed", "nominated"],
)
def test_the_invariant_finds_it(what: str) -> None:
    driver = cell()
    check_invariants(driver.state)
    spoil(what, driver)
    with pytest.raises(BrokenInvariant):
        check_invariants(driver.state)


INDEXES: dict[str, Callable[[Driver], object]] = {
    "timers": lambda driver: driver.state.timers.nomination.cancel(("high", 0)),
    "todo": lambda driver: driver.state.todo.setdefault(driver.instance("start")),
    "running": lambda driver: driver.state.pending.running.clear(),
    "degraded": lambda driver: driver.state.degraded.setdefault(("start", 0)),
    "free rows": lambda driver: driver.state.ledger.free_rows.append(9),
}


@pytest.mark.parametrize("what", INDEXES)
def test_an_index_that_strayed_differs_from_the_rebuilt_one(what: str) -> None:
    driver = cell()
    check_rebuild(driver.state)
    INDEXES[what](driver)
    with pytest.raises(BrokenInvariant):
        check_rebuild(driver.state)


def test_a_check_cannot_be_left_out() -> None:
    check(True, "never said")
    with pytest.raises(BrokenInvariant, match="said"):
        check(False, "said")
