"""Which models suffice for what a job asks of its GPUs: against the second judge, which works it out in another way."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from muster.cluster import snapshot
from muster.cluster.catalogue import NONE_SUFFICES, resolved
from muster.engine.explain import explain
from muster.events.base import MODELS_MAX
from muster.events.catalogue import CatalogueSet, DeviceModel
from muster.events.decisions import InstanceBound, JobRejected
from muster.events.jobs import GroupRequest, JobRequest
from muster.reading.catalogue import package_catalogue
from muster.verify.models import capable
from tests.support.build import group, job, node
from tests.support.driver import Driver


def model(name: str, capability: int, bandwidth: int, memory: int = 1000, *names: str) -> DeviceModel:
    return DeviceModel(model=name, names=names, capability=capability, bandwidth_gbs=bandwidth, memory_mib=memory)


SMALL = (model("A", 70, 900), model("B", 80, 1500, 1000), model("B", 80, 2000, 2000), model("C", 90, 3000, 2000, "see"))


@pytest.mark.parametrize(
    ("asked", "models"),
    [
        ({"gpu_capability": 70}, ("A", "B", "C", "see")),
        ({"gpu_capability": 80}, ("B", "C", "see")),
        ({"gpu_capability": 81}, ("C", "see")),
        ({"gpu_bandwidth": 1600}, ("C", "see")),
        ({"gpu_bandwidth": 1600, "gpu_memory_mib": 1500}, ("B", "C", "see")),
        ({"gpu_bandwidth": 1400, "gpu_memory_mib": 9000}, ("B", "C", "see")),
        ({"gpu_capability": 70, "gpu_models": ("C", "A", "X")}, ("C", "A")),
        ({"gpu_capability": 91}, NONE_SUFFICES),
        ({"gpu_capability": 70, "gpu_models": ("X",)}, NONE_SUFFICES),
    ],
)
def test_the_least_capable_that_suffices_stands_first(asked: dict[str, Any], models: tuple[str, ...]) -> None:
    request = JobRequest(groups=(GroupRequest(gpus=1, **asked),))
    assert resolved(SMALL, request).groups[0].gpu_models == models


def test_who_asks_for_nothing_of_the_kind_is_left_as_it_is() -> None:
    request = JobRequest(groups=(GroupRequest(gpus=1, gpu_models=("X",)),))
    assert resolved(SMALL, request) is request


MODELS = st.lists(
    st.builds(
        model,
        st.sampled_from("ABCD"),
        st.integers(10, 14),
        st.integers(1, 5),
        st.integers(0, 4),
        st.sampled_from(("a", "b", "c")),
    ),
    max_size=8,
)
GROUPS = st.builds(
    GroupRequest,
    gpus=st.just(1),
    gpu_memory_mib=st.integers(0, 5),
    gpu_models=st.lists(st.sampled_from("ABCDabx"), max_size=3, unique=True).map(tuple),
    gpu_capability=st.one_of(st.just(UNSET), st.integers(10, 15)),
    gpu_bandwidth=st.one_of(st.just(UNSET), st.integers(1, 6)),
)


@given(MODELS, GROUPS)
def test_the_second_judge_allows_the_same_models(models: list[DeviceModel], asked: GroupRequest) -> None:
    request = JobRequest(groups=(asked,))
    ours = resolved(tuple(models), request).groups[0].gpu_models
    theirs = capable(tuple(models), request).groups[0].gpu_models
    if ours == NONE_SUFFICES:
        assert theirs == ("no model",)
    else:
        assert sorted(ours) == sorted(theirs)


def test_a_job_keeps_the_models_that_it_was_given_when_it_was_submitted() -> None:
    driver = Driver()
    driver.step(CatalogueSet(models=SMALL), node("a", 1, model="A"), node("b", 1, model="B"))
    driver.step(job("first", group(gpus=1, gpu_capability=80)), job("second", group(gpus=1, gpu_capability=80)))
    first = driver.instance("first").attempt
    assert first is not None
    assert [task.node.name for task in first.tasks.values()] == ["b"]
    driver.step(CatalogueSet(models=(model("A", 99, 1),)))
    assert driver.instance("second").attempt is None
    driver.step(job("third", group(gpus=1, gpu_capability=95)))
    assert [event.job for event in driver.found(InstanceBound)] == ["third"]
    again = snapshot.decode(snapshot.encode(driver.state))
    assert again.catalogue == driver.state.catalogue
    assert again.jobs["second"].gang.shapes[0].gpu_models == ("B", "C", "see")
    assert "compute capability 8.0 at least (B, C, see)" in str(explain(driver.state, "second", 0))


def test_who_asks_for_what_no_model_has_is_rejected_with_what_there_is() -> None:
    driver = Driver()
    driver.step(node("a", 1), job("early", group(gpus=1, gpu_capability=80)))
    (early,) = driver.found(JobRejected)
    assert "the cell has no catalogue of devices" in early.reason
    driver.step(CatalogueSet(models=SMALL))
    driver.step(job("late", group(gpus=1, gpu_bandwidth=4000)))
    (late,) = driver.found(JobRejected)
    assert late.reason.endswith("the catalogue goes up to compute capability 9.0 and to 3000 GB/s")


def test_the_catalogue_of_the_package_is_one_that_can_be_recorded() -> None:
    models = package_catalogue()
    assert msgspec.json.decode(msgspec.json.encode(CatalogueSet(models=models)), type=CatalogueSet).models == models
    names = [name for each in models for name in (each.model, *each.names)]
    assert len(names) <= MODELS_MAX
    wide = JobRequest(groups=(GroupRequest(gpus=1, gpu_capability=10),))
    assert len(resolved(models, wide).groups[0].gpu_models) == len(dict.fromkeys(names))
