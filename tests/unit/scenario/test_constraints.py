"""Scenes about constraints and scores: without the rule that they are about, each of them fails."""

from pathlib import Path

import pytest

from muster.simulator.scenario.format import load
from muster.simulator.scenario.mutate import notices

SCENES = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize(
    ("scene", "mutant"),
    [
        ("topology-smallest", "no-filter-topology"),
        ("topology-smallest", "largest-domain"),
        ("topology-nvlink", "no-domains"),
        ("topology-preferred", "any-number-of-domains"),
        ("T4", "replaced-anywhere"),
        ("spread-racks", "no-spread"),
        ("affinity", "no-filter-affinity"),
        ("anti-affinity", "unwelcome-is-fine"),
        ("exclusive", "no-filter-exclusive"),
        ("exclusive-preempt", "nothing-kept"),
        ("Q19", "no-filter-licences"),
        ("Q19", "without-LicencesSet"),
        ("S10", "licences-for-anybody"),
        ("ports", "no-filter-ports"),
        ("T12", "no-filter-numa"),
        ("job-filters", "no-gate"),
        *[(f"score-{name}", f"no-score-{name}") for name in ("least-allocated", "most-allocated", "balanced", "spread")],
        ("score-locality", "no-score-image-locality"),
        ("score-locality", "no-score-data-locality"),
        ("taint-for-a-while", "taints-for-ever"),
    ],
)
def test_without_its_rule_a_scene_fails(scene: str, mutant: str) -> None:
    assert notices(load(SCENES / f"{scene}.yaml"), mutant)
