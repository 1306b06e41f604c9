"""The names that the log has for shapes: they stay when requests get more fields."""

import msgspec
import pytest

from muster.cluster import shapes
from muster.cluster.shapes import Shape
from muster.events.jobs import GroupRequest, Requirement, Toleration

MUCH = GroupRequest(
    name="w",
    count=4,
    min=2,
    cpu_milli=5,
    gpus=2,
    gpu_models=("h100", "a100"),
    selector=(Requirement(key="zone", values=("a",)),),
    tolerations=(Toleration(key="spot"),),
)


@pytest.mark.parametrize(("group", "name"), [(GroupRequest(), "38072e09ee21b6cd"), (MUCH, "41e59b22df7613ce")])
def test_a_shape_has_the_name_that_recorded_logs_have_for_it(group: GroupRequest, name: str) -> None:
    assert Shape(group).key == name


def test_a_field_that_came_later_changes_no_name_of_a_shape_that_does_not_use_it() -> None:
    class Later(GroupRequest, frozen=True, kw_only=True):
        colour: str = ""

    fields = msgspec.structs.asdict(MUCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_DEFAULTS", msgspec.to_builtins(Later()))
        assert Shape(Later(**fields)).key == Shape(MUCH).key
        assert Shape(Later(**fields, colour="red")).key != Shape(MUCH).key
