"""What docs/constraints.md shows is played and run, and its filter with its test is as short as it says."""

import re
from pathlib import Path
from typing import Any

import pytest

from muster.engine.filters import FILTERS
from muster.simulator.scenario.format import parse
from muster.simulator.scenario.play import play

PAGE = (Path(__file__).parents[2] / "docs" / "constraints.md").read_text(encoding="utf-8")
SCENES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
CODE = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.splitlines()[0].removeprefix("name: "))
def test_a_scene_of_the_page_passes(scene: str) -> None:
    result, _ = play(parse(scene, "docs/constraints.md"))
    assert result.passed, result.line


def test_the_filter_of_the_page_works_and_has_fewer_than_40_lines() -> None:
    assert len(SCENES) >= 6
    (code,) = CODE
    assert len([line for line in code.splitlines() if line.strip()]) < 40
    names: dict[str, Any] = {}
    try:
        exec(compile(code, "docs/constraints.md", "exec"), names)
        names["test_nothing_new_goes_to_a_model_that_retires"]()
    finally:
        FILTERS.pop("not-retiring", None)
