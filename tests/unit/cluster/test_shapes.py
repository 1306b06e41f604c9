"""Shapes and gangs: what is equal for placement, what a share is, who has which rank."""

import pytest

from muster.cluster.shapes import intern_gang, intern_shape
from muster.events.jobs import JobRequest
from tests.support.build import group


def test_groups_that_differ_in_name_and_count_only_are_one_shape() -> None:
    assert intern_shape(group("x", count=3)) is intern_shape(group("y", count=1))
    assert intern_shape(group(gpus=1)) is not intern_shape(group(gpus=2))


@pytest.mark.parametrize("field", ["cpu_milli", "memory_mib", "disk_mib", "gpu_memory_mib"])
def test_every_amount_makes_another_shape(field: str) -> None:
    assert intern_shape(group(gpus=1, **{field: 7})).key != intern_shape(group(gpus=1)).key  # type: ignore[arg-type]


def test_jobs_with_the_same_groups_are_one_gang_whatever_else_they_ask() -> None:
    one, other = (JobRequest(groups=(group("x", count=2),), priority=priority) for priority in (0, 9))
    assert intern_gang(one).key == intern_gang(other).key
    fewer = JobRequest(groups=(group("x", count=2, least=1),))
    assert intern_gang(one).key != intern_gang(fewer).key


def test_ranks_belong_to_groups_in_their_order() -> None:
    gang = intern_gang(JobRequest(groups=(group("x", count=2), group("y", count=1, gpus=2), group("z", count=3))))
    assert [gang.group_of(rank) for rank in range(6)] == [0, 0, 1, 2, 2, 2]
    assert gang.offsets == (0, 2, 3)
    assert gang.tasks == 6
    assert not gang.single


@pytest.mark.parametrize(
    ("asked", "units"),
    [({"gpu_milli": 250}, 250 * 2000), ({"gpu_memory_mib": 500}, 500_000), ({"gpu_milli": 1, "gpu_memory_mib": 900}, 2000)],
)
def test_a_share_is_counted_in_thousandths_of_a_mebibyte(asked: dict[str, int], units: int) -> None:
    shape = intern_shape(group(**asked))  # type: ignore[arg-type]
    assert shape.share
    assert shape.units(2000) == units


def test_thirds_by_memory_and_by_thousandths_add_up_exactly() -> None:
    memory, milli = intern_shape(group(gpu_memory_mib=334)), intern_shape(group(gpu_milli=666))
    assert memory.units(1000) + milli.units(1000) == 1000 * 1000
