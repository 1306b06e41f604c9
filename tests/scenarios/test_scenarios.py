"""Every scene of this folder is played, five times each; every mutant is noticed by a scene that is about its rule."""

from pathlib import Path

import pytest

from muster.simulator.scenario.format import Scenario, load
from muster.simulator.scenario.mutants import MUTANTS
from muster.simulator.scenario.mutate import BROKEN, notices
from muster.simulator.scenario.play import play

FOLDER = Path(__file__).parent
SCENES = sorted(FOLDER.glob("*.yaml"))

NOTICED_BY = {
    "fifo": "order-priority",
    "no-filter-ready": "cordon-starting",
    "no-filter-taints": "taint-two",
    "no-filter-selector": "selector-all",
    "no-filter-model": "model-share",
    "no-filter-resources": "filter-too-small",
    "no-holdings": "D1",
    "no-cpu": "Q12",
    "no-memory": "G6-memory",
    "no-disk": "filter-resources",
    "no-task-slots": "G1-slots",
    "worst-fit": "X4",
    "no-second-look": "R15-taint",
    "no-preemption": "P2",
    "preempt-first": "preempt-not-when-fits",
    "preempt-anybody": "P18c-equal",
    "highest-victim": "P5",
    "spare-nobody": "P2-one-node",
    "no-reclaim": "P18",
    "no-fairness": "fair-shares",
    "best-effort-is-batch": "best-effort-last",
    "best-effort-not-first": "best-effort-flat",
    "best-effort-stays": "best-effort",
    "headroom-is-batch": "headroom",
    "headroom-stays": "headroom",
    "headroom-in-its-place": "headroom-rank",
    "no-history": "history",
    "no-levels": "history-levels",
    "no-decay": "history",
    "no-deadlines": "deadline",
    "no-budgets": "P15-spared",
    "drained-at-once": "budget-drain",
    "no-promises": "Q6-guaranteed",
    "no-weights": "fair-shares",
    "no-tiers": "P22",
    "no-subtrees": "P22-subtree",
    "no-quota": "Q12-limit",
    "no-lending": "queue-lend",
    "no-scaling": "queue-scaled",
    "no-queue-times": "queue-times",
    "no-protection": "queue-not-preempted",
    "no-aging": "S1-aging",
    "no-nomination": "P14-fraction",
    "no-outranking": "P14-outranked",
    "no-grace": "D4",
    "free-at-notice": "D4",
    "no-gang": "G6",
    "no-group-minimum": "G4",
    "only-the-minimum": "G4-reversed",
    "greedy-groups": "G15",
    "no-barrier": "gang-whole-start",
    "no-degradation": "G12",
    "no-requeue": "S17-node-lost",
    "no-growth": "elastic-grows",
    "growth-before-others": "elastic-waits",
    "no-growth-by-reclaim": "P4",
    "evict-before-shrink": "elastic-shrinks-first",
    "shrink-below-minimum": "elastic-whole-last",
    "every-loss-ends-all": "elastic-loses",
    "no-checkpoints": "checkpoint",
    "no-resize": "Q2",
    "rigid-is-resized": "resize",
    "no-dependencies": "after-chain",
    "no-hopeless": "after-failure",
    "no-dependency-cycle": "after-cycle",
    "no-at-once": "array-at-once",
    "no-blame": "S3-backoff",
    "roll-blindly": "services-roll",
    "roll-on": "services-roll-stopped",
    "no-settling": "services-roll",
    "no-surge": "services-roll",
    "replicas-at-once": "services-are-kept",
    "no-windows": "services-metric",
    "no-failure": "gang-member-fails",
    "requeue-last": "S17",
    "no-time-limit": "time-limit",
    "stale-reports": "G9",
    "revival": "R4",
    "refusals-unsaid": "R8",
    "no-liveness": "H3",
    "silent-is-over": "T6",
    "unread-is-missing": "H3-unreadable",
    "no-backfill": "S1",
    "no-order": "order-smallest",
    "no-strictness": "order-strict",
    "planned-in-any-domain": "plan-rack",
    "planned-beside-exclusive": "plan-exclusive",
    "no-reservations": "S11-limit",
    "reserved-for-nobody": "S13",
    "reserved-stay": "maintenance-22",
    "reserved-anywhere": "reservation-amount",
    "without-ReservationSet": "S11",
    "without-ReservationRemoved": "S13",
    "no-quarantine": "H1",
    "endless-flap-window": "H1-window",
    "devices-by-place": "D11-failed",
    "inputs-lost": "R2",
    "positions-forgotten": "R11-restart",
    "gap-ignored": "R11-gap",
    "without-JobCancelRequested": "cancel-starting",
    "without-JobReprioritised": "R15-priority",
    "without-JobRevised": "services-roll",
    "without-JobScaleRequested": "services-are-kept",
    "without-JobMetricReported": "services-metric",
    "without-DeviceHealthChanged": "D7",
    "without-ForeignUseChanged": "Q22",
    "without-NodeRemoved": "G12-removed",
    "without-NodeCordoned": "cordon-starting",
    "without-NodeUncordoned": "R15-uncordoned",
    "without-NodeDrained": "drain",
    "without-NodeFenced": "fence-starting",
    "without-LeaseExtended": "H3-lease-extended",
    "without-QueueSet": "Q21-reconfigured",
    "without-QueueRemoved": "Q7-promise",
    "without-TaskExited": "R13-exit-lost",
    "no-filter-topology": "topology-smallest",
    "largest-domain": "topology-smallest",
    "no-domains": "topology-nvlink",
    "any-number-of-domains": "topology-preferred",
    "replaced-anywhere": "T4",
    "no-spread": "spread-racks",
    "no-filter-affinity": "affinity",
    "unwelcome-is-fine": "anti-affinity",
    "no-filter-exclusive": "exclusive",
    "nothing-kept": "exclusive-preempt",
    "no-filter-licences": "Q19",
    "without-LicencesSet": "Q19",
    "licences-for-anybody": "S10",
    "no-filter-ports": "ports",
    "no-filter-numa": "T12",
    "slices-are-gpus": "D9",
    "slices-anywhere": "mig-packed",
    "no-gate": "job-filters",
    "no-score-least-allocated": "score-least-allocated",
    "no-score-most-allocated": "score-most-allocated",
    "no-score-balanced": "score-balanced",
    "no-score-spread": "score-spread",
    "no-score-image-locality": "score-locality",
    "no-score-data-locality": "score-locality",
    "no-alternatives": "selector-alternatives",
    "no-preferences": "selector-preferred",
    "no-catalogue": "capability-least",
    "most-capable-first": "capability-least",
    "no-sizes": "capability-sizes",
    "taints-for-ever": "taint-for-a-while",
    "no-score-model-preference": "model-preference",
}
"""For each mutant, a scene about the rule that it leaves out."""

LIKELY = ("no-holdings", "without-TaskExited", "no-requeue", "no-preemption", "no-filter-ready", "no-liveness")
"""Tried first, because most scenes notice one of these."""


@pytest.mark.parametrize("path", SCENES, ids=[path.stem for path in SCENES])
def test_what_the_scene_expects_is_true(path: Path) -> None:
    result, _ = play(load(path))
    assert result.passed, result.line


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_left_out_is_noticed_by_its_scene(mutant: str) -> None:
    assert notices(load(FOLDER / f"{NOTICED_BY[mutant]}.yaml"), mutant)


@pytest.mark.parametrize("path", SCENES, ids=[path.stem for path in SCENES])
def test_the_scene_notices_that_some_rule_is_left_out(path: Path) -> None:
    scenario = load(path)
    assert any(noticed(scenario, mutant) for mutant in dict.fromkeys([*LIKELY, *MUTANTS]))


def noticed(scenario: Scenario, mutant: str) -> bool:
    """Whether it is; one that stands in contradiction to itself is not."""
    try:
        return notices(scenario, mutant)
    except BROKEN:
        return False
