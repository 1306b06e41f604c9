"""The runner: what it reports, what it lets nobody get away with, and faults put in on purpose that it has to find."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from muster.cluster import snapshot
from muster.cluster.evolve_jobs import HANDLERS
from muster.cluster.state import State
from muster.engine import preempt
from muster.engine.emit import Emitter
from muster.engine.step import Engine
from muster.events.decisions import InstanceBound, InstancePreempted, ShapeDeferred
from muster.scheduler.core import Core
from muster.simulator.scenario.format import parse
from muster.simulator.scenario.mutants import MUTANTS
from muster.simulator.scenario.play import Result, play
from muster.simulator.scenario.trace import trace_lines
from muster.simulator.scenario.world import World, in_order

HEAD = """name: a scene
cluster:
  nodes:
    - {name: "n[1-2]", gpus: 2}
steps:
"""

PREEMPTION = (
    '{at: 0, submit: {name: "low[1-4]", gpus: 1, priority: 1, grace: 30, stop_takes: never}}',
    "{at: 10, submit: {name: high, gpus: 1, priority: 10}}",
    "{at: 20, submit: {name: other, gpus: 1, priority: 5}}",
    "{at: 100, expect: {running: high, preempted_count: 2}}",
)


def played(*steps: str) -> tuple[Result, World]:
    return play(parse(HEAD + "".join(f"  - {step}\n" for step in steps)))


def failed(*steps: str) -> str:
    result, _ = played(*steps)
    assert not result.passed
    return result.line


def test_a_scene_that_is_as_expected_passes() -> None:
    result, world = played(*PREEMPTION)
    assert result.line == "pass a scene"
    assert result.cycles == len(world.log)


def test_a_failure_names_the_step_what_was_expected_and_what_was() -> None:
    line = failed(
        "{at: 0, submit: {name: a, gpus: 1}}",
        "{at: 1, expect: {running: a}}",
        "{at: 2, expect: {running_exactly: [], on: {a: n2}}}",
    )
    assert line == "FAIL a scene: step 3 at 2 s (line 8), expected running_exactly: [], actual [a]"


@pytest.mark.parametrize(
    ("expectation", "actual"),
    [
        ("pending: a", "a is running"),
        ("running: '1 of b[1-3]'", "3 of 3: [b1, b2, b3]"),
        ("running: never-yet", "never-yet is not submitted"),
        ("exactly_one_of: [a, b1]", "[a, b1] run"),
        ("holds_nothing: a", "a holds 1 places"),
        ("members: {a: 2}", "a: 1"),
        ("members_by_group: {a: {task: {at_least: 2}}}", "a.task: 1"),
        ("on: {a: n2}", "a is on [n1]"),
        ("not_on: {a: 'n[1-2]'}", "a is on n1"),
        ("devices: {a: {n1: [1]}}", "a has [0] of n1"),
        ("attempt: {a: 2}", "a: 1"),
        ("preempted: [a]", "[]"),
        ("bound_count: {at_most: 3}", "4"),
        ("decisions_since: {at: 0, count: 0}", "8"),
        ("free: {n1: {gpus: 1}}", "n1 gpus 0"),
        ("queue: {default: {gpus: 3, cpu: 0.4}}", "default gpus 4"),
        ("user: {u: {gpus/H100: 5}}", "u gpus/H100 4"),
        ("held: {default: {memory: 1Gi}}", "default memory 400Mi"),
        ("node: {n1: lost}", "n1 is ready"),
        ("before: [b1, a]", "bound in the order [a, b1]"),
        ("refused: 1", "0"),
        ("any_of: [{pending: a}, {running: a, refused: 2}]", "pending: a is running | refused: 0"),
        ("same_devices_as_at: {a: 0}", "a has [GPU-n1-1-0] and had []"),
    ],
)
def test_an_expectation_that_is_not_met_says_what_is_so(expectation: str, actual: str) -> None:
    line = failed(
        "{at: 0, add_nodes: {name: n3}}",
        "{at: 1, submit: [{name: a, gpus: 1}, {name: 'b[1-3]', gpus: 1}]}",
        f"{{at: 2, expect: {{{expectation}}}}}",
        "{at: 3, submit: {name: never-yet}}",
    )
    assert line.endswith(f", actual {actual}"), line


def test_an_expectation_before_any_decision_proves_nothing() -> None:
    assert "the scene proves nothing" in failed("{at: 0, expect: {node: {n1: ready}}}")


def test_what_must_never_be_is_looked_for_after_every_cycle() -> None:
    line = failed(
        "{at: 0, never: {running: [a, b]}, submit: [{name: a, gpus: 1, runtime: 2}, {name: b, gpus: 1, runtime: 2}]}",
        "{at: 10, expect: {finished: [a, b]}}",
    )
    assert line.startswith("FAIL a scene: step 1 at 0 s (line 6), never, expected running: [a, b], actual so at 0 s")


def test_every_order_of_a_shuffled_step_is_played() -> None:
    steps = ("{at: 0, shuffle: true, submit: [{name: a, gpus: 2, count: 2}, {name: b, gpus: 2, count: 2}]}",)
    assert played(*steps, "{at: 1, expect: {exactly_one_of: [a, b]}}")[0].passed
    assert "in another order of the inputs" in failed(*steps, "{at: 1, expect: {running: a}}")
    sent = [("t/0", bytes([number]), "") for number in range(4)]
    assert len({tuple(in_order(sent, order)) for order in range(24)}) == 24


def test_what_cannot_be_done_fails_at_its_step() -> None:
    assert "step 1 at 0 s (line 6), expected a to run when it finishes" in failed(
        "{at: 0, finish: a}".replace("finish: a", "submit: {name: a, gpus: 9}, finish: a"), "{at: 1, expect: {pending: a}}"
    )
    assert "is submitted again, actual it has not" in failed(
        "{at: 0, submit: {name: a}}", "{at: 1, submit: {name: a}, expect: {running: a}}"
    )


def test_a_job_with_too_many_digits_is_refused_and_not_an_error_of_the_file() -> None:
    result, _ = played(
        '{at: 0, submit: [{name: a, gpu_share: "0.3333"}, {name: b, gpu_share: "0.333"}, {name: c, cpu: 4611686018427387904}]}',
        "{at: 1, expect: {running_exactly: [b], refused: 2, rejected_exactly: [a, c], holds_nothing: [a, c]}}",
    )
    assert result.passed, result.line


def test_the_trace_has_every_entry_with_names_for_ids() -> None:
    _, world = played(*PREEMPTION)
    lines = list(trace_lines(world, json=False))
    assert len(lines) == sum(len(c.inputs) + len(c.decisions) + (c.started is not None) for c in world.cycles)
    assert any("decision InstancePreempted" in line and '"by_job":"high"' in line for line in lines)


# Faults put in on purpose


def emitting(change: Callable[[Any, Any], bool]) -> Any:
    emit = Emitter.emit

    def planted(self: Emitter, decision: Any) -> None:
        if change(self, decision):
            emit(self, decision)

    return mock.patch.object(Emitter, "emit", planted)


def test_an_engine_whose_caches_decide_is_found() -> None:
    drop = Engine.drop_caches

    def forgetful(self: Engine) -> None:
        drop(self)
        self.state.deferred.clear()

    with mock.patch.object(Engine, "drop_caches", forgetful):
        assert "the same log when played without caches" in failed(*PREEMPTION)


def test_a_snapshot_that_loses_something_is_found() -> None:
    decode = snapshot.decode

    def lossy(data: bytes) -> State:
        state = decode(data)
        state.deferred.clear()
        return state

    with mock.patch.object(snapshot, "decode", lossy):
        assert "the same log when played rebuilt from a snapshot" in failed(*PREEMPTION)


def test_a_state_that_the_log_does_not_say_is_found() -> None:
    step = Engine.step

    def secretive(self: Engine, *args: Any) -> Any:
        decisions = step(self, *args)
        return [decision for decision in decisions if type(decision) is not ShapeDeferred]

    with mock.patch.object(Engine, "step", secretive):
        assert "the same log when played rebuilt from the log" in failed(*PREEMPTION)


def test_a_decision_that_depends_on_more_than_the_log_is_found() -> None:
    calls: list[int] = []
    rank = preempt.rank

    def moody(attempt: Any) -> Any:
        calls.append(1)
        return rank(attempt)[0], len(calls) % 7

    with mock.patch.object(preempt, "rank", moody):
        assert "the same log when played" in failed(*PREEMPTION)


def test_a_device_that_is_given_twice_is_found() -> None:
    with MUTANTS["no-holdings"]():
        line = failed("{at: 0, submit: {name: 'a[1-6]', gpus: 1}}", "{at: 1, expect: {bound_count: {at_least: 1}}}")
    assert "expected" in line


def test_a_gang_that_is_bound_in_part_is_found() -> None:
    with MUTANTS["no-gang"]():
        assert "at least 9 are needed" in failed(
            "{at: 0, submit: {name: a, count: 9, gpus: 1}}", "{at: 1, expect: {bound_count: {at_least: 0}}}"
        )


def test_a_filter_that_is_left_out_is_found_without_an_expectation() -> None:
    with MUTANTS["no-filter-selector"]():
        line = failed("{at: 0, submit: {name: a, selector: {x: y}}}", "{at: 1, expect: {bound_count: {at_least: 0}}}")
    assert "expected a to be where it may be, actual on n1: the selector's x is not met" in line


def test_a_victim_that_was_not_needed_is_found() -> None:
    with MUTANTS["spare-nobody"]():
        assert "no proper subset of the victims to do" in failed(*PREEMPTION[:2], "{at: 100, expect: {running: high}}")


def test_a_victim_of_equal_rank_is_found() -> None:
    with MUTANTS["preempt-anybody"]():
        assert "no victim to outrank its beneficiary" in failed(
            '{at: 0, submit: {name: "low[1-4]", gpus: 1}}',
            "{at: 10, submit: {name: high, gpus: 1}}",
            "{at: 100, expect: {bound_count: {at_least: 0}}}",
        )


def test_a_preemption_for_nobody_is_found() -> None:
    done: list[int] = []

    def again(emitter: Any, decision: Any) -> bool:
        if type(decision) is InstanceBound and emitter.state.at_us and not done:
            for key, instances in ((job.id, job.instances) for job in emitter.state.jobs.values()):
                if key != decision.job and instances[0].phase == "running":
                    done.append(1)
                    attempt = instances[0].attempt
                    HANDLERS[InstancePreempted](
                        emitter.state,
                        planted := InstancePreempted(
                            job=key,
                            instance=0,
                            attempt=attempt.number,
                            by_job=decision.job,
                            by_instance=0,
                            kill_at_us=emitter.state.at_us,
                        ),
                    )
                    emitter.decisions.append(planted)
                    break
        return True

    with emitting(again):
        line = failed(
            "{at: 0, submit: {name: low, gpus: 1, priority: 1}}",
            "{at: 10, submit: {name: high, gpus: 1, priority: 10}}",
            "{at: 20, expect: {running: high}}",
        )
    assert "a preemption to be for a nomination" in line


def test_an_input_that_is_lost_at_a_restart_is_found() -> None:
    with MUTANTS["inputs-lost"]():
        assert "is not" not in failed(
            "{at: 0, submit: {name: a, gpus: 1}}",
            "{at: 5, restart_with_gap: 10}",
            "{at: 6, submit: {name: b, gpus: 1}}",
            "{at: 20, expect: {running_exactly: [a, b]}}",
        )


def test_a_record_that_would_not_be_admitted_is_found() -> None:
    follow = Core.follow

    def skipping(self: Core, data: bytes) -> Any:
        return follow(self, data.replace(b'"gpus":1', b'"gpus":2'))

    with mock.patch.object(Core, "follow", skipping):
        line = failed("{at: 0, submit: {name: a, gpus: 1}}", "{at: 5, restart: true}", "{at: 20, expect: {running: a}}")
    assert "expected the core to go on, actual BrokenInvariant: this is not the record" in line or "admitted" in line
