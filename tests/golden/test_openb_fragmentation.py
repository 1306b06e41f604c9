"""The fragmentation that a gateway shows, folded from a log, is the published one, within 0.01 points at every bin.

The data are those of test_openb_gate, and where they are not there this is skipped too.
"""

from pathlib import Path

import pytest

from muster.cluster.evolve import apply
from muster.cluster.state import State
from muster.events.codec import decode_cycle
from muster.events.jobs import JobSubmitted
from muster.log.sqlite import SqliteFile
from muster.measures.nodes import NodeBook
from muster.simulator.openb import loader, protocol, run
from tests.golden.test_openb_gate import DATA, PODS, trace

SEED = 42
TOGETHER = 8
"""So many pods arrive in a cycle: what is shown is as of a cycle, what was published as of each pod."""

pytestmark = pytest.mark.skipif(not PODS.exists(), reason=f"the openb data are not in {DATA}")


def test_the_published_curve_of_fragmentation_is_hit_at_every_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ARRIVALS_A_CYCLE", TOGETHER)
    nodes, pods = trace()
    arrivals = loader.read_arrivals(DATA / "arrivals" / "arrival_default.csv.gz", SEED, len(pods))
    ranks = loader.read_ranks(DATA / "arrivals" / "nodetie_default.csv.gz", SEED, nodes)
    policy = protocol.policy("fgd", pods)
    shown = protocol.Curve(1000 * sum(node.gpus for node in nodes))
    bins: dict[int, list[float]] = {}
    with SqliteFile.open(tmp_path, writer=True) as file:
        run.follow_protocol(nodes, pods, arrivals, ranks, policy, file, lambda _: None)
        state = State(file.cell)
        book = NodeBook()
        position = 0
        while records := file.read(position):
            position = records[-1].position
            for record in records:
                cycle = decode_cycle(record.data)
                apply(state, cycle)
                book.aim(state.policy.targets)
                book.notice(state)
                while book.advance(state):
                    pass
                arrived = [event for event in cycle.inputs if isinstance(event, JobSubmitted)]
                for event in arrived:
                    (group,) = event.request.groups
                    shown.arrived_milli += 1000 * group.gpus or group.gpu_milli
                if arrived:
                    found = {name: value for name, labels, value in book.samples({}) if labels in ((), ("all",))}
                    percent = found["muster_fragmentation_ratio"]
                    assert isinstance(percent, float)
                    bins.setdefault(round(100 * shown.arrived_milli / shown.total_milli), []).append(100 * percent)
    measured = {at: sum(values) / len(values) for at, values in bins.items()}
    published = protocol.read_published(DATA / "published" / "analysis_frag_discrete.csv.gz", "fgd", SEED, PODS)
    worst, at = protocol.worst_difference(measured, published)
    assert len(published) == 131
    assert worst <= protocol.TOLERANCE_POINTS, f"{worst:.4f} points off at {at} % arrived"
