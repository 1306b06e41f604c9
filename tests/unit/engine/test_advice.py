"""What would start a job now: what is said was tried, and is true when it is done."""

import msgspec
import pytest

from muster.engine.explain import explain
from muster.engine.whynot import why_not
from muster.events.base import Event
from muster.events.jobs import Constraints, JobRequest, JobSubmitted, JobTerm, Licences, Requirement, Spread, Within
from muster.events.nodes import NodeRegistered, Taint
from muster.events.operations import LicencesSet, NodeCordoned
from tests.support.build import group, job, node
from tests.support.driver import Driver


def asked(event: Event, **constraints: object) -> JobSubmitted:
    """The submission with these constraints."""
    assert isinstance(event, JobSubmitted)
    request: JobRequest = msgspec.structs.replace(event.request, constraints=Constraints(**constraints))  # type: ignore[arg-type]
    return msgspec.structs.replace(event, request=request)


def racked(name: str, rack: str, gpus: int = 2) -> NodeRegistered:
    event = node(name, gpus)
    assert isinstance(event, NodeRegistered)
    return msgspec.structs.replace(event, spec=msgspec.structs.replace(event.spec, rack=rack))


def advice(driver: Driver, id: str) -> tuple[str, ...]:
    return explain(driver.state, id, advise=True).advice


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (asked(job("j", group(count=3, gpus=2)), within=(Within(level="rack"),)), "if rack were only preferred"),
        (asked(job("j", group(count=3, gpus=2)), within=(Within(level="rack"),)), "if it started with 2 of its 3 tasks"),
        (asked(job("j", group(count=4, gpus=1)), spread=(Spread(level="rack", most=1),)), "if its tasks need not stand apart"),
        (asked(job("j"), affinity=(JobTerm(labels=(Requirement(key="a", op="Exists"),)),)), "if it need not be near others"),
        (asked(job("j"), licences=(Licences(name="solver", count=3),)), "if there were 1 more licences solver"),
        (job("j", group(gpus=3)), "if a task asked for 2 GPUs and not for 3"),
        (job("j", group(gpus=1, cpu_milli=900_000)), "if a task asked for 64000 milli-CPU and not for 900000"),
        (job("j", group(gpus=1, gpu_models=("Z",))), "if it took any model of GPU"),
        (job("j", group(gpus=1, selector=(Requirement(key="zone", values=("z",)),))), "if it had no selector"),
        (job("j", group(gpus=1, numa="required", cpu_milli=40_000), group("g", ports=(1,))), ""),
    ],
)
def test_a_change_that_would_start_it_is_named(event: JobSubmitted, said: str) -> None:
    driver = Driver()
    driver.step(racked("a", "r1"), racked("b", "r1"), racked("c", "r2"), LicencesSet(licences={"solver": 2}))
    driver.step(event)
    assert (said in advice(driver, "j")) if said else driver.instance("j").attempt is not None


def test_a_taint_and_a_priority_are_named() -> None:
    driver = Driver()
    driver.step(node("a", 1), node("b", 1, taints=(Taint(key="k", value="v"),)))
    driver.step(job("low", priority=3))
    driver.run("low")
    driver.step(job("j"))
    found = advice(driver, "j")
    assert "if it tolerated the taint k=v" in found
    assert "if its priority were 4: 1 attempts would be preempted for it" in found


def test_where_no_small_change_would_do_that_is_said() -> None:
    driver = Driver()
    driver.step(node("a", 1), NodeCordoned(node="a"))
    driver.step(job("j"))
    assert advice(driver, "j") == ()
    assert "no small change of it alone would start it now" in explain(driver.state, "j", advise=True).lines


def test_why_not_says_everything_that_keeps_a_job_off_one_node() -> None:
    driver = Driver()
    driver.step(racked("a", "r1", 1), node("b", 2, taints=(Taint(key="k"),)))
    driver.step(job("first", group(count=2, gpus=1, selector=())), job("low"))
    driver.step(
        asked(
            job("j", group(count=2, gpus=1, selector=(Requirement(key="zone", values=("z",)),))), within=(Within(level="rack"),)
        )
    )
    text = "\n".join(why_not(driver.state, "j", "b").lines)
    assert "b: has a taint that the job does not tolerate" in text
    assert "b: has labels that do not meet the selector (zone In z)" in text
    assert "b: names no rack" in text
    assert not why_not(driver.state, "j", "b").fits
    with pytest.raises(KeyError, match="there is no node c"):
        why_not(driver.state, "j", "c")


def test_why_not_says_what_of_a_gang_has_no_room_in_the_domain_of_a_node() -> None:
    driver = Driver()
    driver.step(racked("a", "r1"), racked("b", "r2", 1))
    driver.step(asked(job("j", group(count=3, gpus=1)), within=(Within(level="rack"),)))
    found = why_not(driver.state, "j", "a")
    assert found.fits
    assert found.lines == (
        "a has room for 2 of 3 tasks",
        "the rack r1 of a has room for 2 tasks of the 3 that stay within one",
    )


def test_why_not_says_who_holds_a_node_and_who_could_go() -> None:
    driver = Driver()
    driver.step(node("a", 2))
    driver.step(job("low", priority=1), job("high", priority=9))
    driver.run("low", "high")
    driver.step(job("j", group(gpus=2), priority=5))
    found = why_not(driver.state, "j", "a")
    assert found.lines == (
        "a: too few GPUs free (needs 2, most free 0)",
        "a holds tasks of 2 attempts: 1 could be preempted for it, 0 stop already",
    )
    assert why_not(driver.state, "low", "a").lines[0] == "it is running, with 1 of its tasks on a"
