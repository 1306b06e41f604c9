"""The rows say what the state says, cycle after cycle, for every recorded log and for stories of chaos."""

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from muster.cluster.evolve import apply
from muster.cluster.state import State
from muster.events.codec import decode_cycle, digest
from muster.events.decisions import StartPlanned
from muster.events.record import Cycle
from muster.events.registry import DECISIONS
from muster.history.fold import Fold, FoldError, Store
from muster.history.making import _SAID
from muster.history.rows import TABLES
from tests.golden.recorded import LOGS, names, read
from tests.support.plays import story

OPENB = [name for name in names() if name.startswith("openb")]
LOGS_LOOKED_AT_EACH_CYCLE = [name for name in names() if name not in OPENB]


def folded(records: list[bytes], fold: Fold | None = None, after: int = 0) -> Iterator[tuple[Fold, Store, Cycle]]:
    """The fold after each record from the one with number `after` + 1, and all its rows so far."""
    store = Store()
    for data in records[after:]:
        cycle = decode_cycle(data)
        if fold is None:
            fold = Fold(cycle.cell)
        store.take(fold.take(cycle, digest(data), cycle.number, len(data)))
        yield fold, store, cycle


def rows(store: Store, table: str) -> dict[tuple[Any, ...], Any]:
    """The rows of a table by key, without the cell."""
    return {key[1:]: row for key, row in store.tables.get(table, {}).items()}


def compare(state: State, store: Store, gone: dict[tuple[Any, ...], Any]) -> None:
    """Each thing of the state against its row, and each row that says it is there against the state."""
    jobs, instances, attempts, placements = [rows(store, name) for name in ("jobs", "instances", "attempts", "placements")]
    holding, running = set(), set()
    for job in state.jobs.values():
        row = jobs[(job.id,)]
        phases = [instance.phase for instance in job.instances]
        assert (row.priority, row.queue, row.instances) == (job.priority, job.queue, len(phases))
        assert row.pending == phases.count("pending")
        assert row.running == sum(phase in ("starting", "running", "stopping") for phase in phases)
        assert (row.finished, row.failed) == (phases.count("finished"), phases.count("failed"))
        assert (row.ended_us is None, row.entered_us) == (bool(job.open), job.submitted_us)
        assert (row.state in ("pending", "running")) == bool(job.open)
        for instance in job.instances:
            said = instances[instance.key]
            assert (said.state, said.attempts, said.retries) == (instance.phase, instance.attempts, instance.retries)
            assert (said.cancelling, said.reason, said.code) == (instance.cancelling, instance.reason, instance.code)
            assert (said.ended_us or 0) == instance.ended_us
            attempt = instance.attempt
            if attempt is None:
                continue
            key = (*instance.key, attempt.number)
            running.add(key)
            said = attempts[key]
            assert (said.phase, said.bound_us, said.ended_us) == (attempt.phase, attempt.bound_us, None)
            assert (said.started_us or 0, said.kill_at_us or 0) == (attempt.started_us, attempt.kill_at_us)
            assert (said.stop_reason, said.tasks) == (attempt.stop_reason, len(attempt.tasks))
            for task in attempt.tasks.values():
                place = (*key, task.rank, task.since)
                said = placements[place]
                assert (said.phase, said.code) == (task.phase, task.code)
                assert (said.node, said.uid) == (task.node.name, task.node.uid)
                assert (said.released_us is None) == task.holding
                if task.holding:
                    holding.add(place)
    assert holding == {key for key, row in placements.items() if row.released_us is None}
    assert running == {key for key, row in attempts.items() if row.ended_us is None}
    compare_nodes(state, store)
    for key, row in placements.items():
        if row.released_us is not None:
            assert gone.setdefault(key, row) == row, "a place that was given back changes no more"


def compare_nodes(state: State, store: Store) -> None:
    """Nodes and devices against their rows."""
    nodes, devices = rows(store, "nodes"), rows(store, "devices")
    there = set()
    for node in state.nodes:
        if node is None:
            continue
        there.add((node.name, node.uid))
        row = nodes[node.name, node.uid]
        assert (row.state, row.boot, row.row) == (node.liveness, node.boot, node.row)
        assert (row.cordoned, row.drained, row.fenced) == (node.cordoned, node.drained, node.fenced)
        assert (row.quarantined_until_us or 0) == node.quarantined_until_us
        for index, device in enumerate(node.devices):
            row = devices[node.name, node.uid, index]
            assert (row.uuid, row.health) == (device.uuid, device.health)
            assert (row.present, row.in_foreign_use) == (device.present, device.foreign)
    assert there == {key for key, row in nodes.items() if row.state != "removed"}


def held_in(state: State) -> dict[str, tuple[int, ...]]:
    """By queue what waits, runs and is held, counted from the state."""
    found: dict[str, list[int]] = {}
    for job in state.jobs.values():
        held = found.setdefault(job.queue, [0] * 5)
        for instance in job.instances:
            held[0] += instance.phase == "pending"
            held[1] += instance.phase in ("starting", "running", "stopping")
            for task in instance.attempt.tasks.values() if instance.attempt is not None else ():
                if task.holding:
                    held[2] += 1
                    held[3] += task.shape.cpu_milli
                    held[4] += task.shape.memory_mib
    return {queue: tuple(held) for queue, held in found.items() if any(held)}


def look_at_each_cycle(records: list[bytes]) -> None:
    """Compare after each cycle."""
    state = State(decode_cycle(records[0]).cell)
    gone: dict[tuple[Any, ...], Any] = {}
    minute = 0
    for _, store, cycle in folded(records):
        if state.number and cycle.at_us // 60_000_000 > minute:
            at_us = cycle.at_us // 60_000_000 * 60_000_000
            sampled = {queue: row for (queue, us), row in rows(store, "shares").items() if us == at_us}
            held = {queue: (row.pending, row.running, row.tasks, row.cpu_milli, row.memory_mib) for queue, row in sampled.items()}
            assert {queue: amounts for queue, amounts in held.items() if any(amounts)} == held_in(state)
            gpus = sum(device.present for node in state.nodes if node is not None for device in node.devices)
            assert {row.cluster_gpu_milli for row in sampled.values()} == {1000 * gpus}
        minute = cycle.at_us // 60_000_000
        apply(state, cycle)
        compare(state, store, gone)
    decided = [
        (cycle.number, place, type(event).__name__)
        for cycle in map(decode_cycle, records)
        for place, event in enumerate(cycle.decisions)
    ]
    assert [row[1:3] + row[4:5] for row in store.in_order("decisions")] == decided
    assert [row[1] for row in store.in_order("cycles")] == list(range(1, len(records) + 1))


@pytest.mark.parametrize("name", LOGS_LOOKED_AT_EACH_CYCLE)
def test_the_rows_say_what_the_state_says_after_each_cycle_of_a_recorded_log(name: str) -> None:
    look_at_each_cycle(read(LOGS, name))


@pytest.mark.parametrize("seed", range(40, 46))
def test_the_rows_say_what_the_state_says_after_each_cycle_of_a_chaos(seed: int) -> None:
    look_at_each_cycle(story(Random(seed), 50, nodes=4)[0].records)


@pytest.mark.parametrize("name", OPENB[:1])
def test_the_rows_say_what_the_state_says_at_the_end_of_a_large_log(name: str) -> None:
    records = read(LOGS, name)
    *_, (fold, store, _) = folded(records)
    compare(fold.state, store, {})


@pytest.mark.parametrize("name", ["story-3", "story-14", "scene-R11-gap", "scene-preempt-gang-for-gang", "scene-G12-refilled"])
def test_a_fold_that_was_written_down_makes_the_same_rows(name: str) -> None:
    records = read(LOGS, name)
    *_, (whole, right, _) = folded(records)
    store = Store()
    fold = Fold(whole.cell)
    for data in records:
        cycle = decode_cycle(data)
        fold = Fold.decode(fold.encode())
        store.take(fold.take(cycle, digest(data), cycle.number, len(data)))
    assert fold.encode() == whole.encode()
    for table in TABLES:
        assert list(store.in_order(table.name)) == list(right.in_order(table.name))


def test_what_is_no_fold_is_refused() -> None:
    fold = Fold("c1")
    assert Fold.decode(fold.encode()).number == 0
    for bad in (b"", b"\x93", fold.encode()[:-1], msgspec.msgpack.encode([0, b"", {}, [], [], []])):
        with pytest.raises(FoldError):
            Fold.decode(bad)


def test_every_kind_of_decision_has_a_row() -> None:
    assert {kind.__name__ for kind in _SAID} == set(DECISIONS)
    for kind, said in _SAID.items():
        names = {field.name for field in msgspec.structs.fields(kind)}
        assert set(said.values()) <= names
        left_out = {"row", "victims", "members", "avoid", "charged", *(["until_us"] if kind is StartPlanned else [])}
        assert names - set(said.values()) <= left_out, "what it leaves out, it leaves out on purpose"
