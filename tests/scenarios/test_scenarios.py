"""Every scene of this folder is played, five times each; every mutant is noticed by a scene that is about its rule."""

from pathlib import Path

import pytest

from muster.simulator.scenario.format import load
from muster.simulator.scenario.mutants import MUTANTS
from muster.simulator.scenario.mutate import notices
from muster.simulator.scenario.play import play

FOLDER = Path(__file__).parent
SCENES = sorted(FOLDER.glob("*.yaml"))

NOTICED_BY: dict[str, str] = {}


@pytest.mark.parametrize("path", SCENES, ids=[path.stem for path in SCENES])
def test_what_the_scene_expects_is_true(path: Path) -> None:
    result, _ = play(load(path))
    assert result.passed, result.line


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_left_out_is_noticed_by_its_scene(mutant: str) -> None:
    assert notices(load(FOLDER / f"{NOTICED_BY[mutant]}.yaml"), mutant)
