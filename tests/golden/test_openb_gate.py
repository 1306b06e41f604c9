"""The openb gate: through the real core, the two published policies hit the published curves within 0.01 at every bin.

The data are not a part of the product: `MUSTER_OPENB` names their folder, else `../shared/data/openb` beside the
repository is used, else this is skipped. By default two of the ten seeds run; `MUSTER_OPENB_SEEDS=all` runs
all ten.
"""

import os
from functools import cache
from pathlib import Path

import pytest

from muster.log.sqlite import SqliteFile
from muster.simulator.openb import loader, protocol, run

DATA = Path(os.environ.get("MUSTER_OPENB") or Path(__file__).parents[3] / "shared" / "data" / "openb")
PODS = DATA / "pods" / "openb_pod_list_default.csv.gz"
ALL_SEEDS = tuple(range(42, 52))
CHOSEN = os.environ.get("MUSTER_OPENB_SEEDS", "42,51")
SEEDS = ALL_SEEDS if CHOSEN == "all" else tuple(int(seed) for seed in CHOSEN.split(","))


pytestmark = pytest.mark.skipif(not PODS.exists(), reason=f"the openb data are not in {DATA}")


@cache
def trace() -> tuple[list[loader.Node], list[loader.Pod]]:
    return loader.read_nodes(DATA / "nodes" / "openb_node_list_gpu_node.csv"), loader.read_pods(PODS)


def played(policy: str, seed: int, folder: Path) -> dict[int, float]:
    nodes, pods = trace()
    arrivals = loader.read_arrivals(DATA / "arrivals" / "arrival_default.csv.gz", seed, len(pods))
    ranks = loader.read_ranks(DATA / "arrivals" / "nodetie_default.csv.gz", seed, nodes)
    with SqliteFile.open(folder, writer=True) as file:
        _, curve = run.follow_protocol(nodes, pods, arrivals, ranks, protocol.policy(policy, pods), file, lambda _: None)
    return curve.values()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", ["bestfit", "fgd"])
def test_the_published_curve_is_hit_at_every_bin(policy: str, seed: int, tmp_path: Path) -> None:
    published = protocol.read_published(DATA / "published" / "analysis_allo_discrete.csv.gz", policy, seed, PODS)
    worst, at = protocol.worst_difference(played(policy, seed, tmp_path), published)
    assert len(published) == 131
    assert worst <= protocol.TOLERANCE_POINTS, f"{worst:.4f} points off at {at} % arrived"


def test_the_target_workload_is_the_published_one() -> None:
    published = [
        row
        for row in loader.read_table(
            DATA / "reference" / "typical_pods.csv.gz", ("workload", "cpu_milli", "num_gpu", "frequency")
        )
        if row.text("workload") == "openb_pod_list_default"
    ]
    targets = protocol.target_workload(trace()[1])
    total = sum(target.weight for target in targets)
    assert len(targets) == len(published) == 35
    for target, row in zip(targets, published, strict=True):
        assert target.cpu_milli == row.integer("cpu_milli")
        assert (target.gpus or bool(target.gpu_milli)) == row.integer("num_gpu")
        assert abs(target.weight / total - row.number("frequency")) < 1e-9
