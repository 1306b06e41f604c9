"""Recorded logs are replayed for ever: the same decisions and the same states, whatever hash seed or processor."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from muster.events.codec import decode_cycle
from muster.events.decisions import InstancePreempted
from muster.verify import verify
from tests.golden.recorded import LOGS, MUST_FAIL, Replayed, admitted, names, read, replay

ROOT = Path(__file__).parents[2]
RECORDED = {result.name: result for result in msgspec.json.decode((LOGS / "digests.json").read_bytes(), type=list[Replayed])}
ENVIRONMENTS = {
    "one hash seed": {"PYTHONHASHSEED": "1"},
    "another hash seed": {"PYTHONHASHSEED": "4294967295"},
    "an older processor": {"NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3", "PYTHONHASHSEED": "1"},
}


def test_every_log_has_its_digests() -> None:
    assert sorted(RECORDED) == names()
    assert len(RECORDED) >= 20


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_log_is_replayed_the_same_way_everywhere(environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.golden.recorded", str(LOGS)],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENTS[environment]},
        capture_output=True,
        check=True,
    )
    replayed = [msgspec.json.decode(line, type=Replayed) for line in result.stdout.splitlines()]
    assert {each.name: each for each in replayed} == RECORDED


@pytest.mark.parametrize("name", [name for name in RECORDED if name != MUST_FAIL])
def test_the_log_is_decided_the_same_way_and_was_legal(name: str) -> None:
    assert RECORDED[name].difference == ""
    assert RECORDED[name].decisions > 0
    assert verify(map(decode_cycle, read(LOGS, name))) == []


def test_one_log_must_fail() -> None:
    assert replay(LOGS, MUST_FAIL).difference == RECORDED[MUST_FAIL].difference != ""


def test_the_logs_hold_every_policy_and_preemptions() -> None:
    logs = {name: [envelope.policy for envelope, _ in admitted(read(LOGS, name))][-1] for name in RECORDED}
    assert {policy.split("/")[0] for policy in logs.values()} >= {"default", "bestfit", "fgd"}
    decided = [event for name in RECORDED for data in read(LOGS, name) for event in decode_cycle(data).decisions]
    assert sum(isinstance(event, InstancePreempted) for event in decided) >= 5
