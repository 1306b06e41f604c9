"""Makes the golden logs anew: `python -m tests.golden.record OPENB`. Only when a policy or a kind has a new version.

A change that makes this necessary for a version that was released is a mistake: old logs are replayed for ever. A new schema of
snapshots changes none of them, only the digests of the states that come of them: `python -m tests.golden.record states` notes
those anew, and nothing else of what a replay comes to may differ from what was noted before.
"""

import sys
import tempfile
from pathlib import Path
from random import Random

import msgspec

from muster.cli.main import run
from muster.events.codec import decode_cycle, digest, encode_cycle
from muster.events.decisions import InstanceBound
from muster.log.reader import read_admitted
from muster.simulator.scenario.format import load
from muster.simulator.scenario.play import Performance
from tests.golden.recorded import LOGS, MUST_FAIL, SUFFIX, Replayed, read, replay, write
from tests.support.plays import story

SCENES = (
    "G1-many",
    "G12-refilled",
    "G3-device",
    "G4-mixed-shapes",
    "P14-restart",
    "P18c",
    "P21-second-victim",
    "P24-partly-gone",
    "Q15-mixed",
    "R11-gap",
    "R9-drain",
    "S3-backoff-doubles",
    "preempt-gang-for-gang",
    "selector-operators",
    "taint-two",
    "time-limit-gap",
)
STORIES = (3, 8, 11, 14, 21)
"""Seeds of chaos (`tests.support.chaos`): every kind of input, in any order, late, doubled and foreign ones too."""
STORY_CYCLES = 150
POLICIES = ("default", "bestfit", "fgd")
ARRIVALS = 300


def main(openb: Path) -> None:
    """Play the scenes, the stories and the beginning of the openb experiment under each policy, and keep the logs."""
    for path in LOGS.glob(f"*{SUFFIX}"):
        path.unlink()
    for name in SCENES:
        scene = load(Path(__file__).parents[1] / "scenarios" / f"{name}.yaml")
        performance = Performance(scene, invariants=False)
        performance.run()
        write(LOGS, f"scene-{name}", performance.world.log)
    for seed in STORIES:
        write(LOGS, f"story-{seed}", story(Random(seed), STORY_CYCLES, nodes=5)[0].records)
    for policy in POLICIES:
        write(LOGS, f"openb-{policy}", _openb(openb, policy))
    write(LOGS, MUST_FAIL, _altered(LOGS))
    note()


def note() -> None:
    """Keep what a replay of each log comes to."""
    results = [replay(LOGS, path.name.removesuffix(SUFFIX)) for path in sorted(LOGS.glob(f"*{SUFFIX}"))]
    (LOGS / "digests.json").write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def _openb(data: Path, policy: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        files = ("--nodes", data / "nodes/openb_node_list_gpu_node.csv", "--pods", data / "pods/openb_pod_list_default.csv.gz")
        options = ("--log", folder, "--policy", policy, "--protocol", "fgd", "--list-limit", ARRIVALS)
        assert run([str(argument) for argument in ("simulate", "openb", *files, *options)]) == 0
        return [record for _, record in read_admitted(folder)]


def _altered(folder: Path) -> list[bytes]:
    """A log in which the first binding that could have been elsewhere is, with the digests made to agree."""
    records: list[bytes] = []
    done = False
    for data in read(folder, "scene-G1-many"):
        cycle = decode_cycle(data)
        decisions = list(cycle.decisions)
        for index, event in enumerate(decisions):
            if isinstance(event, InstanceBound) and len(event.placements) > 1 and not done:
                first, second, *rest = event.placements
                swapped = (
                    msgspec.structs.replace(first, row=second.row, devices=second.devices),
                    msgspec.structs.replace(second, row=first.row, devices=first.devices),
                )
                decisions[index] = msgspec.structs.replace(event, placements=(*swapped, *rest))
                done = True
        previous = digest(records[-1]) if records else cycle.previous
        records.append(encode_cycle(msgspec.structs.replace(cycle, decisions=tuple(decisions), previous=previous)))
    assert done
    return records


def states() -> None:
    """Note the states anew.

    Raises:
        AssertionError: a replay comes to something else than another schema can explain.
    """
    before = msgspec.json.decode((LOGS / "digests.json").read_bytes(), type=list[Replayed])
    note()
    after = msgspec.json.decode((LOGS / "digests.json").read_bytes(), type=list[Replayed])
    stateless = [[msgspec.structs.replace(each, state="") for each in results] for results in (before, after)]
    assert stateless[0] == stateless[1], "this is more than another schema"


if __name__ == "__main__":
    if sys.argv[1] == "states":
        states()
    else:
        main(Path(sys.argv[1]))
